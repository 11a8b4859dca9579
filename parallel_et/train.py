"""Train a model: ``mpirun -n 64 python -m parallel_et.train JOB.toml``."""

from parallel_et.launch import start

if __name__ == "__main__":
    start("train")
