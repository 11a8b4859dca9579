"""What a run has learned, in one page: ``python -m parallel_et.report DIR``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("report")
