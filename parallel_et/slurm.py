"""Write a batch script: ``python -m parallel_et.slurm JOB.toml --nodes 4 --ntasks-per-node 32 --time 4:00:00``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("slurm")
