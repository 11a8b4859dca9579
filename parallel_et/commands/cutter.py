"""What the commands that cut images and recordings share: the options, the file, and the way from one to the other."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from parallel_et.commands import STOPPED, Parser
from parallel_et.commands.infer import open_output
from parallel_et.control.progress import Reporter
from parallel_et.control.stopping import Stopping
from parallel_et.errors import UserError
from parallel_et.io.lock import Lock
from parallel_et.io.output import Table
from parallel_et.parallel.ranks import Ranks
from parallel_et.prepare.album import Album, Places
from parallel_et.prepare.cutting import Cutting, StoppedError, Sweep, about, survey

PASSING = ("inputs", "fresh", "quiet", "max_time")
"""Arguments that make no difference to what is cut, or stand elsewhere."""
SINGLE = float(np.finfo(np.float32).max)
"""The largest number that can be stored."""


def add_common(parser: Parser, bad: str) -> None:
    """The options that both commands have; ``bad`` says what makes a file a bad one."""
    parser.add_argument("--seed", metavar="NUMBER", type=int, default=1, help="of the random places; 1 by default")
    does = f"what {bad}, is: fatal (by default), or named and skipped"
    parser.add_argument("--bad", choices=("fatal", "skip"), default="fatal", help=does)


def add_running(parser: Parser) -> None:
    """The options that make no difference to what is cut."""
    parser.add_argument("--fresh", action="store_true", help="start over, also if FILE is there")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_max_time()


def refuse_bad(parser: Parser, args: argparse.Namespace, checks: Sequence[tuple[str, bool, str]]) -> None:
    """Refuse the first value that is not good; ``checks``: name of an option, whether it is good, what was expected."""
    for option, good, expected in checks:
        if not good:
            found = vars(args)[option]
            words = " ".join(map(str, found)) if isinstance(found, list) else found
            parser.error(f"--{option.replace('_', '-')}: expected {expected}, found {words}")


def command_of(name: str, args: argparse.Namespace) -> str:
    """The command that cuts the same, the same for all that do."""
    words = ["python", "-m", f"parallel_et.{name}", *args.inputs]
    for option, value in vars(args).items():
        if option not in PASSING and value is not None and value is not False:
            values = [] if value is True else value if isinstance(value, list) else [value]
            words += [
                f"--{option.replace('_', '-')}",
                *(str(v).removesuffix(".0") if isinstance(v, float) else str(v) for v in values),
            ]
    return shlex.join(words)


def run(ranks: Ranks, args: argparse.Namespace, work: Callable[[Sweep], str]) -> int:
    """Do the work, alone on its file, until it is done or to stop; returns the exit code.

    ``work`` returns the name of the table that it has written.
    """
    report = Reporter(ranks.is_root, args.quiet)
    sweep = Sweep(ranks, report, Stopping(args.max_time))
    ranks.limit_threads()
    lock = Lock(Path(f"{args.output}.lock"), args.output, report.say)
    ranks.from_root(lock.take)
    try:
        table = work(sweep)
    except StoppedError as early:
        begun = args.fresh and part_of(args).exists()
        report.say(f"{early}; the same command{' without --fresh' if begun else ''} goes on")
        return STOPPED
    finally:
        lock.release()
    report.say(f"result: {args.output}:/{table}")
    return 0


def look_at(args: argparse.Namespace, sweep: Sweep, album: Album, files: Sequence[str]) -> None:
    """Look at all files and say which are bad."""
    bad = survey(sweep, album, files, args.bad == "skip")
    for line in bad:
        sweep.report.say(f"skipped {line}")
    if not album.entries:
        raise UserError(f"{' '.join(args.inputs)}: expected {album.kind}, found {len(bad)} bad files alone")


def cut(args: argparse.Namespace, sweep: Sweep, album: Album, places: Places, command: str, words: str) -> None:
    """Say in ``words`` what is cut, then cut, prepare and write it."""
    ranks, report, unit = sweep.ranks, sweep.report, album.unit
    report.say(
        f"{places.points} {unit} {words} from {len(album.entries)} {album.kind} with {places.total} "
        f"places, on {ranks.size} rank{'s' if ranks.size > 1 else ''}"
        + ("" if album.keeps else f"; too large to be kept, the {album.kind} are filtered again for each piece")
    )
    cutting = Cutting(sweep, album, places)
    cutting.prepare()
    what = about(cutting, command)
    tables = {unit: Table((places.points, *album.shape), np.float32, what)}
    arrays = {} if cutting.zca is None else {f"zca/{name}": values for name, values in vars(cutting.zca).items()}
    with open_output(Path(args.output), tables, ranks, what, args.fresh, arrays) as output:
        if there := sum(last - first for first, last in output.written):
            report.say(f"{there} {unit} are there already")
        cutting.write(output)


def part_of(args: argparse.Namespace) -> Path:
    """What there is of an output that was interrupted."""
    return Path(f"{args.output}.part")


def refuse_taken(args: argparse.Namespace) -> None:
    """Do not begin what could not be written in the end."""
    if Path(args.output).is_dir():
        raise UserError(f"{args.output}: expected a file, found a directory")
    if not args.fresh and Path(args.output).exists() and not part_of(args).exists():
        raise UserError(f"{args.output}: expected a name that is not taken, found a file; --fresh writes it anew")
