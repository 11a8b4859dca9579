"""Draw points from the model that a run has learned: ``python -m parallel_et.generate DIR --points N``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("generate")
