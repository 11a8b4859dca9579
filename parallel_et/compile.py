"""Compile all kernels ahead of the first run: ``python -m parallel_et.compile``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("compile")
