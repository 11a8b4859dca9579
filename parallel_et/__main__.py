"""``python -m parallel_et`` and ``parallel-et``: run a command."""

import sys

from parallel_et.errors import suggestion
from parallel_et.launch import start

COMMANDS = {
    "job": "print a starter job",
    "train": "train a model as described by a job file",
    "infer": "infer causes and reconstructions of new data with a trained model",
    "trials": "train with many seeds or values of a key, and compare the results",
    "generate": "draw points from a trained model",
    "compare": "compare the reconstruction error of a trained model with classical NMF",
    "patches": "cut training patches from images",
    "merge": "reassemble images from patches",
    "sounds": "cut training segments or spectrograms from recordings",
    "voices": "synthesise a sentence in ten voices, as recordings for sounds",
    "reproduce": "repeat the experiments of a paper, and compare the results with the published ones",
    "report": "write a page about a run, or about two runs side by side",
    "bench": "measure the time of an iteration, relative to one matrix product",
    "slurm": "write a batch script for a job",
    "compile": "compile all kernels before the first run",
}


def main() -> None:
    """Run the command of the first argument, or list all commands."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        start(name, sys.argv[2:])
    if name not in ("--help", "-h"):
        hint = suggestion(name, [*COMMANDS])
        print(f"parallel-et: expected {' or '.join(COMMANDS)}, found {name}{hint}", file=sys.stderr)
        sys.exit(2)
    print("usage: parallel-et COMMAND … (or python -m parallel_et COMMAND …)")
    for command, description in COMMANDS.items():
        print(f"  {command:<10} {description}")
    print("parallel-et COMMAND --help shows the options of a command")


if __name__ == "__main__":
    main()
