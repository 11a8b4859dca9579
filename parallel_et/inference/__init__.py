"""Posteriors of new points, recovery of known causes, and diagnostics of a trained model."""
