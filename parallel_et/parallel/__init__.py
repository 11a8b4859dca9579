"""Everything that involves several MPI ranks; no other package imports mpi4py."""
