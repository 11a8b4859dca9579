"""What a trained model makes of data: ``mpirun -n 64 python -m parallel_et.infer DIR DATA --output posterior.h5``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("infer")
