"""Reading and writing of files: atomic writes, checksums, HDF5, locks, and tables that all ranks write."""
