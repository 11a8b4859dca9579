"""``python -m parallel_et`` and ``parallel-et``: the commands."""

import sys

from parallel_et.errors import meant
from parallel_et.launch import start

COMMANDS = {
    "job": "print a job to begin with",
    "train": "train a model as a job file says",
    "infer": "tell what a trained model makes of data",
    "trials": "train it with many seeds, or values of a key, and tell how well",
    "generate": "draw points from a trained model",
    "compare": "compare its reconstruction error with that of classical NMF",
    "patches": "cut patches from images for training",
    "merge": "put pictures together again of their patches",
    "sounds": "cut segments or spectrograms from recordings for training",
    "voices": "let ten voices say a sentence, as recordings for sounds",
    "reproduce": "run the experiments of a paper and put its figures beside",
    "report": "show in one page what a run has learned, or two side by side",
    "bench": "measure an iteration beside one matrix product",
    "slurm": "write a batch script for a job",
    "compile": "compile all kernels ahead of the first run",
}


def main() -> None:
    """Run the command that is named, or list all."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        start(name, sys.argv[2:])
    if name not in ("--help", "-h"):
        print(f"parallel-et: expected {' or '.join(COMMANDS)}, found {name}{meant(name, [*COMMANDS])}", file=sys.stderr)
        sys.exit(2)
    print("usage: parallel-et COMMAND … (or python -m parallel_et COMMAND …)")
    for command, does in COMMANDS.items():
        print(f"  {command:<10} {does}")
    print("--help after a command shows more")


if __name__ == "__main__":
    main()
