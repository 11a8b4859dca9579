"""The only room that imports mpi4py: who owns which points, exact sums, the cut, errors that end all ranks."""
