"""One run: setup, training, checkpoints, resumption, results, and the functions ``fit`` and ``load``."""
