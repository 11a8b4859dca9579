"""A first job: ``python -m parallel_et.job linca > job.toml``."""

from parallel_et.start import start

if __name__ == "__main__":
    start("job")
