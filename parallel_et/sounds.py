"""Segments of recordings: ``mpirun -n 4 python -m parallel_et.sounds recordings/ --length 12.5ms``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("sounds")
