"""The only room that imports h5py: data files and run directories."""
