"""The experiments of papers, one file a kind of experiment."""
