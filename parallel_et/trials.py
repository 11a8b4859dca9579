"""Count how often a job finds all causes: ``mpirun -n 8 python -m parallel_et.trials JOB.toml --count 50``."""

from parallel_et.parallel.ranks import run_command

if __name__ == "__main__":
    run_command("trials")
