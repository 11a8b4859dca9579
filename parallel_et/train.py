"""Train a model: ``mpirun -n 64 python -m parallel_et.train JOB.toml``."""

from parallel_et.parallel.ranks import run_command

if __name__ == "__main__":
    run_command("train")
