"""The experiments of papers, one file per kind of experiment."""
