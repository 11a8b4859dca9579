"""Train a model: ``mpirun -n 64 python -m parallel_et.train JOB.toml``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("train")
