"""Measure an iteration beside one matrix product: ``mpirun -n 2 python -m parallel_et.bench``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("bench")
