"""``python -m parallel_et`` and ``parallel-et``: the commands."""

import sys

from parallel_et.parallel.ranks import Ranks, run_command

COMMANDS = {
    "train": "train a model as a job file says",
    "trials": "train it with many seeds and count how often all causes are found",
}


def main() -> None:
    """Run the command that is named, or list all."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        run_command(name, sys.argv[2:])
    if Ranks().is_root:
        lines = [f"  {command:<8} {does}" for command, does in COMMANDS.items()]
        known = name in ("--help", "-h")
        print(
            "\n".join(
                [
                    "usage: parallel-et COMMAND … (or python -m parallel_et.COMMAND …)",
                    *lines,
                    "--help after a command shows more",
                ]
            )
            if known
            else f"parallel-et: expected {' or '.join(COMMANDS)}, found {name}",
            file=sys.stdout if known else sys.stderr,
        )
    sys.exit(0 if name in ("--help", "-h") else 2)


if __name__ == "__main__":
    main()
