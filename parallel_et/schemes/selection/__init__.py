"""Selections: the preselection of candidates, which several schemes share."""
