"""``python -m parallel_et.patches IMAGES…``: from images to a file of patches, written by all ranks."""

import argparse
from collections.abc import Sequence

import numpy as np

from parallel_et.commands import Parser
from parallel_et.commands.cutter import (
    SINGLE,
    add_common,
    add_running,
    command_of,
    cut,
    look_at,
    refuse_bad,
    refuse_taken,
    run,
)
from parallel_et.parallel.ranks import Ranks
from parallel_et.prepare.album import Album, Places
from parallel_et.prepare.cutting import Sweep
from parallel_et.prepare.images import ENDINGS, find_images
from parallel_et.prepare.steps import WHITEN_F0, Steps


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "patches",
        'Cut patches from images, for a job with source = "patches.h5:/patches". Given again, the command goes on '
        "where it was interrupted. The steps that are asked for are taken in the order in which they are listed here.",
        "mpirun -n 4 python -m parallel_et.patches images/ --size 26 --count 500000 --clamp 2 --dog 1 3",
    )
    kinds = f"{' '.join(ENDINGS)}, or file.mat:VARIABLE"
    images = f"files, folders or patterns; {kinds}; colours (a last axis of 3) become luminance"
    parser.add_argument("inputs", metavar="IMAGES", nargs="+", help=images)
    parser.add_argument("--output", metavar="FILE", default="patches.h5", help="patches.h5 by default")
    parser.add_argument("--size", metavar="PIXELS", type=int, default=26, help="side of a patch; 26 by default")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--count", metavar="N", type=int, help="patches at random places, all places equally likely")
    which.add_argument("--all", action="store_true", help="the patches at all places, overlapping")
    parser.add_argument("--stride", metavar="PIXELS", type=int, help="with --all: from one place to the next; 1")
    add_common(parser, "a file that is no image, or one smaller than a patch")
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
    add_running(parser)
    args = parser.parse_args(argv)
    check(args, parser)
    return args


def check(args: argparse.Namespace, parser: Parser) -> None:
    """Refuse numbers that make no sense."""
    low, high = args.scale or (0, 1)
    narrow, wide = args.dog or (1, 2)
    checks = (
        ("size", args.size > 0, "a positive number"),
        ("count", args.count is None or 0 < args.count < 2**48, "a positive number"),
        ("stride", args.stride is None or (args.stride > 0 and args.all), "a positive number, with --all"),
        ("seed", 0 <= args.seed < 2**63, "a number from 0 to 2^63 - 1"),
        ("clamp", args.clamp is None or 0 < args.clamp < 100, "a percentage between 0 and 100"),
        ("dog", 0 < narrow < 1e4 and 0 < wide < 1e4 and narrow != wide, "two different positive numbers below 10000"),
        ("zca", args.zca is None or 0 < args.zca < np.inf, "a positive number"),
        ("scale", -SINGLE <= low < high <= SINGLE, "a number and a larger one"),
    )
    refuse_bad(parser, args, checks)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    return run(ranks, args, lambda sweep: patches(args, sweep))


def patches(args: argparse.Namespace, sweep: Sweep) -> str:
    """Look at the images, then cut, prepare and write the patches; returns the name of their table."""
    pair = {name: value and tuple(value) for name, value in (("dog", args.dog), ("scale", args.scale))}
    steps = Steps(args.clamp, pair["dog"], args.whiten, args.mean_free, args.zca, args.on_off, pair["scale"])
    files = sweep.ranks.from_root(lambda: find_images(args.inputs))
    sweep.ranks.from_root(lambda: refuse_taken(args))
    album = Album(steps, (args.size, args.size), sweep.between)
    look_at(args, sweep, album, files)
    places = Places(album, args.count, args.stride or 1, args.seed)
    cut(args, sweep, album, places, command_of("patches", args), f"of {args.size} x {args.size}")
    return album.unit
