"""Patches of images: ``mpirun -n 4 python -m parallel_et.patches images/ --count 500000 --output patches.h5``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("patches")
