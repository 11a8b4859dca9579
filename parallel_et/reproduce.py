"""The experiments of a paper, with its figures beside: ``mpirun -n 2 python -m parallel_et.reproduce et-2010``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("reproduce")
