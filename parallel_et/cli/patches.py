"""``python -m parallel_et patches IMAGES…``: from images to a file of patches, written by all ranks."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.filters import WHITEN_F0
from parallel_et.preprocessing.images import ENDINGS
from parallel_et.preprocessing.patches import Patches


def arguments(argv: Sequence[str]) -> Patches:
    """The command line."""
    parser = Parser(
        "patches",
        'Cut patches from images, for a job with source = "patches.h5:/patches". Given again, the command goes on '
        "where it was interrupted. The steps that are asked for are taken in the order in which they are listed here.",
        "mpirun -n 4 python -m parallel_et patches images/ --size 26 --count 500000 --clamp 2 --dog 1 3",
    )
    kinds = f"{' '.join(ENDINGS)}, or file.mat:VARIABLE"
    images = f"files, folders or patterns; {kinds}; colours (a last axis of 3) become luminance, but with --colour"
    parser.add_argument("inputs", metavar="IMAGES", nargs="+", help=images)
    parser.add_argument("--output", metavar="FILE", default="patches.h5", help="patches.h5 by default")
    parser.add_argument("--size", metavar="PIXELS", type=int, default=26, help="side of a patch; 26 by default")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--count", metavar="N", type=int, help="patches at random places, all places equally likely")
    which.add_argument("--all", action="store_true", help="the patches at all places, overlapping")
    parser.add_argument("--stride", metavar="PIXELS", type=int, help="with --all: from one place to the next; 1")
    parser.add_cutting("a file that is no image, or one smaller than a patch")
    parser.add_argument("--colour", action="store_true", help="pixels of red, green and blue, each filtered by itself")
    steps = parser.add_argument_group("steps on whole images")
    noise = "add Gaussian noise of SIGMA, by the seed, for experiments; the images without it are kept as /truth"
    steps.add_argument("--noise", metavar="SIGMA", type=float, help=noise)
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
    contrast = "scale each patch by itself so that its largest magnitude becomes MOST"
    steps.add_argument("--contrast", metavar="MOST", type=float, help=contrast)
    steps.add_argument("--on-off", action="store_true", help="positive and negative parts as two channels")
    scale = "scale linearly so that the smallest and largest value of all patches become LOW and HIGH"
    steps.add_argument("--scale", metavar=("LOW", "HIGH"), nargs=2, type=float, help=scale)
    parser.add_running()
    return parser.options(argv, Patches)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return ranks.from_root(lambda: arguments(argv)).cut(ranks)
