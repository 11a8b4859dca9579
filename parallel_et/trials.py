"""Count how often a job finds all causes: ``mpirun -n 8 python -m parallel_et.trials JOB.toml --count 50``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("trials")
