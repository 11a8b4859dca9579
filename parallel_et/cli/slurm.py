"""``python -m parallel_et slurm JOB.toml``: a batch script for a job, with its memory demand."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from parallel_et.cli import Parser
from parallel_et.errors import UserError
from parallel_et.job.job import Job, read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.memory_demand import Demand
from parallel_et.runs.setup import demand_of, open_source
from parallel_et.storage.atomic import unwritable_reason
from parallel_et.storage.error_translation import replace_unprintable

SCRIPTS = Path(__file__).parent.parent / "scripts"
TIME = "([0-9]+-)?[0-9]+(:[0-9][0-9]?){0,2}"
MEMORY_FACTOR = 1.1
"""Ratio of requested memory and expected memory."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "slurm",
        "Write a batch script for a job: slurm/train.sbatch with nodes, ranks, threads, time and memory filled in.",
        "python -m parallel_et slurm job.toml --nodes 4 --ntasks-per-node 32 --time 4:00:00 --write job.sbatch\n"
        "  sbatch job.sbatch",
    )
    parser.add_job("job file; run.threads is the number of CPUs per rank")
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
    parser.add_argument("--ntasks-per-node", type=int, required=True, metavar="RANKS", help="ranks per node")
    parser.add_argument("--time", required=True, help="time limit of the job in Slurm's format: 4:00:00, 2-12:00:00")
    parser.add_argument("--output", metavar="DIR", help="run directory; default: runs/<job name>")
    parser.add_argument("--mpirun", action="store_true", help="start the ranks with mpirun instead of srun")
    parser.add_argument("--write", metavar="FILE", help="new file for the script; default: standard output")
    args = parser.parse_args(argv)
    if args.nodes < 1 or args.ntasks_per_node < 1:
        parser.error("--nodes and --ntasks-per-node must be 1 or more")
    if not re.fullmatch(TIME, args.time):
        parser.error(f"--time: expected a time as 4:00:00 or 2-12:00:00, found {args.time}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    ranks.from_root(lambda: write(arguments(argv)))
    return 0


def write(args: argparse.Namespace) -> None:
    """Write the batch script to a file or to standard output."""
    job = read_job(args.job, args.set)
    if not job.name.isprintable():  # a line break would end the option
        raise UserError(
            f"{replace_unprintable(args.job)}: expected a name without control characters, found {job.name!a}"
        )
    if not args.job.endswith(".toml"):
        raise UserError(
            f"{replace_unprintable(args.job)}: expected a name that ends in .toml, for the batch script, found another"
        )
    most = expected(job, args.nodes * args.ntasks_per_node)
    text = fill_in((SCRIPTS / ("train-mpirun.sbatch" if args.mpirun else "train.sbatch")).read_text(), args, job, most)
    if args.write is None:
        sys.stdout.write(text)
    else:
        try:
            with open(args.write, "x") as file:
                file.write(text)
        except OSError as error:
            why = unwritable_reason(args.write, error)
            raise UserError(f"{args.write}: expected a place for a new file, found {why}") from None
    if most.blocks < args.nodes * args.ntasks_per_node:
        found = f"found {args.nodes * args.ntasks_per_node}: the other ranks would have no points"
        print(
            f"warning: {replace_unprintable(args.job)}: expected at most {most.blocks} ranks, {found}",
            file=sys.stderr,
            flush=True,
        )


def expected(job: Job, ranks: int) -> Demand:
    """Return the demand of the job on a rank, from the sizes of its data."""
    source = open_source(job)
    return demand_of(job, source, ranks)


def fill_in(template: str, args: argparse.Namespace, job: Job, most: Demand) -> str:
    """Return the batch script of a job."""
    memory = MEMORY_FACTOR * (
        args.ntasks_per_node * most.memory + most.root
    )  # of the node of the root; other nodes need less
    options = {
        "job-name": job.name,
        "nodes": args.nodes,
        "ntasks-per-node": args.ntasks_per_node,
        "cpus-per-task": job.run.threads,
        "time": args.time,
    }
    for name, value in options.items():
        template = _replace(rf"^#SBATCH --{name}=.*$", f"#SBATCH --{name}={shlex.quote(str(value))}", template)
    template = _replace(r"^#SBATCH --mem-per-cpu=.*$", f"#SBATCH --mem={-(-memory // 2**20):.0f}M", template)
    call = [as_path(args.job), *(word for setting in args.set for word in ("--set", setting))]
    call += [] if args.output is None else ["--output", as_path(args.output)]
    template = _replace(r"^PYTHON=.*$", f"PYTHON=${{PYTHON:-{shlex.quote(sys.executable)}}}", template)
    template = _replace(
        r"^# Train a job.*$|^# As train.*$", f"# Train {replace_unprintable(args.job)}:  sbatch this file", template
    )
    return _replace(r'^supervise "\$@"$', f'supervise {shlex.join(call)} "$@"', template)


def as_path(word: str) -> str:
    """Return a path that no command confuses with an option."""
    return f"./{word}" if word.startswith("-") else word


def _replace(line: str, new: str, text: str) -> str:
    text, count = re.subn(line, lambda _: new, text, flags=re.MULTILINE)
    assert count == 1, line
    return text
