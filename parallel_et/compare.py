"""Compare a run with classical NMF: ``python -m parallel_et.compare DIR``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("compare")
