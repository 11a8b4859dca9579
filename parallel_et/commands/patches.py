"""``python -m parallel_et.patches IMAGES…``: from images to a file of patches, written by all ranks."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallel_et.album import Album, Places
from parallel_et.commands import STOPPED, Parser
from parallel_et.commands.infer import open_output
from parallel_et.cutting import Cutting, StoppedError, Sweep, about, survey
from parallel_et.errors import UserError
from parallel_et.io.images import ENDINGS, find_images
from parallel_et.io.lock import Lock
from parallel_et.io.output import Table
from parallel_et.parallel.ranks import Ranks
from parallel_et.preparation import WHITEN_F0, Steps
from parallel_et.progress import Reporter
from parallel_et.stopping import Stopping

PASSING = ("images", "fresh", "quiet", "max_time")
"""Arguments that make no difference to the patches, or stand elsewhere."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "patches",
        'Cut patches from images, for a job with source = "patches.h5:/patches". Given again, the command goes on '
        "where it was interrupted. The steps that are asked for are taken in the order in which they are listed here.",
        "mpirun -n 4 python -m parallel_et.patches images/ --size 26 --count 500000 --clamp 2 --dog 1 3",
    )
    images = f"files, folders or patterns; {' '.join(ENDINGS)}, or file.mat:VARIABLE; colours become luminance"
    parser.add_argument("images", metavar="IMAGES", nargs="+", help=images)
    parser.add_argument("--output", metavar="FILE", default="patches.h5", help="patches.h5 by default")
    parser.add_argument("--size", metavar="PIXELS", type=int, default=26, help="side of a patch; 26 by default")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--count", metavar="N", type=int, help="patches at random places, all places equally likely")
    which.add_argument("--all", action="store_true", help="the patches at all places, overlapping")
    parser.add_argument("--stride", metavar="PIXELS", type=int, help="with --all: from one place to the next; 1")
    parser.add_argument("--seed", metavar="NUMBER", type=int, default=1, help="of the random places; 1 by default")
    bad = "what a file that is no image, or one smaller than a patch, is: fatal (by default), or named and skipped"
    parser.add_argument("--bad", choices=("fatal", "skip"), default="fatal", help=bad)
    steps = parser.add_argument_group("steps on whole images")
    clamp = "set the brightest PERCENT of an image's pixels to the value at that percentile"
    steps.add_argument("--clamp", metavar="PERCENT", type=float, help=clamp)
    dog = "difference of Gaussians: smoothed with SIGMA pixels less smoothed with SIGMA2"
    steps.add_argument("--dog", metavar=("SIGMA", "SIGMA2"), nargs=2, type=float, help=dog)
    white = f"pseudo-whitening of Olshausen and Field: f exp(-(f/f0)^4), f0 = {WHITEN_F0} cycles a pixel"
    steps.add_argument("--whiten", action="store_true", help=white)
    steps = parser.add_argument_group("steps on patches")
    steps.add_argument("--mean-free", action="store_true", help="subtract from each patch its mean")
    zca = "whiten by the covariance of all patches, with EPS added to its eigenvalues"
    steps.add_argument("--zca", metavar="EPS", type=float, help=zca)
    steps.add_argument("--on-off", action="store_true", help="positive and negative parts as two channels")
    scale = "scale linearly so that the smallest and largest value of all patches become LOW and HIGH"
    steps.add_argument("--scale", metavar=("LOW", "HIGH"), nargs=2, type=float, help=scale)
    parser.add_argument("--fresh", action="store_true", help="start over, also if FILE is there")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_max_time()
    args = parser.parse_args(argv)
    check(args, parser)
    return args


def check(args: argparse.Namespace, parser: Parser) -> None:
    """Refuse numbers that make no sense."""
    low, high = args.scale or (0, 1)
    narrow, wide = args.dog or (1, 2)
    for option, good, expected in (
        ("size", args.size > 0, "a positive number"),
        ("count", args.count is None or args.count > 0, "a positive number"),
        ("stride", args.stride is None or (args.stride > 0 and args.all), "a positive number, with --all"),
        ("seed", 0 <= args.seed < 2**63, "a number from 0 to 2^63 - 1"),
        ("clamp", args.clamp is None or 0 < args.clamp < 100, "a percentage between 0 and 100"),
        ("dog", 0 < narrow < np.inf and 0 < wide < np.inf and narrow != wide, "two positive numbers"),
        ("zca", args.zca is None or 0 < args.zca < np.inf, "a positive number"),
        ("scale", -np.inf < low < high < np.inf, "a number and a larger one"),
    ):
        if not good:
            found = vars(args)[option]
            words = " ".join(map(str, found)) if isinstance(found, list) else found
            parser.error(f"--{option}: expected {expected}, found {words}")


def command_of(args: argparse.Namespace) -> str:
    """The command that makes these patches, the same for all that do."""
    words = ["python", "-m", "parallel_et.patches", *args.images]
    for name, value in vars(args).items():
        if name not in PASSING and value is not None and value is not False:
            values = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"--{name.replace('_', '-')}", *(str(v).removesuffix(".0") for v in values)]
    return shlex.join(words)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    report = Reporter(ranks.is_root, args.quiet)
    sweep = Sweep(ranks, report, Stopping(args.max_time))
    ranks.limit_threads()
    lock = Lock(Path(f"{args.output}.lock"), args.output, report.say)
    ranks.from_root(lock.take)
    try:
        patches(args, sweep)
    except StoppedError as early:
        begun = args.fresh and part_of(args).exists()
        report.say(f"{early}; the same command{' without --fresh' if begun else ''} goes on")
        return STOPPED
    finally:
        lock.release()
    report.say(f"result: {args.output}:/patches")
    return 0


def patches(args: argparse.Namespace, sweep: Sweep) -> None:
    """Look at the images, then cut, prepare and write the patches."""
    ranks, report = sweep.ranks, sweep.report
    pair = {name: value and tuple(value) for name, value in (("dog", args.dog), ("scale", args.scale))}
    steps = Steps(args.clamp, pair["dog"], args.whiten, args.mean_free, args.zca, args.on_off, pair["scale"])
    files = ranks.from_root(lambda: find_images(args.images))
    ranks.from_root(lambda: refuse_taken(args))
    album = Album(steps, args.size, sweep.between)
    bad = survey(sweep, album, files, args.bad == "skip")
    for line in bad:
        report.say(f"skipped {line}")
    if not album.entries:
        raise UserError(f"{' '.join(args.images)}: expected images, found {len(bad)} bad files alone")
    places = Places(album.entries, args.size, args.count, args.stride or 1, args.seed)
    report.say(
        f"{places.points} patches of {args.size} x {args.size} from {len(album.entries)} images with {places.total} "
        f"places, on {ranks.size} rank{'s' if ranks.size > 1 else ''}"
        + ("" if album.keeps else "; too large to be kept, the images are filtered again for each piece")
    )
    cutting = Cutting(sweep, album, places)
    cutting.prepare()
    what = about(cutting, command_of(args))
    channels = (2,) if args.on_off else ()
    tables = {"patches": Table((places.points, *channels, args.size, args.size), np.float32, what)}
    arrays = {} if cutting.zca is None else {f"zca/{name}": values for name, values in vars(cutting.zca).items()}
    with open_output(Path(args.output), tables, ranks, what, args.fresh, arrays) as output:
        if there := sum(last - first for first, last in output.written):
            report.say(f"{there} patches are there already")
        cutting.write(output)


def part_of(args: argparse.Namespace) -> Path:
    """What there is of an output that was interrupted."""
    return Path(f"{args.output}.part")


def refuse_taken(args: argparse.Namespace) -> None:
    """Do not begin what could not be written in the end."""
    if not args.fresh and Path(args.output).exists() and not part_of(args).exists():
        raise UserError(f"{args.output}: expected a name that is not taken, found a file; --fresh writes it anew")
