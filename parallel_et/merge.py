"""Pictures of patches: ``mpirun -n 4 python -m parallel_et.merge posterior.h5 --output denoised.png``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("merge")
