"""The experiments of papers: a file for each kind of experiment that more than one job makes up."""
