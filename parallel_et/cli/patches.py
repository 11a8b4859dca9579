"""``python -m parallel_et patches IMAGES…``: a file of patches of images, written by all ranks."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.filters import WHITENING_CUTOFF
from parallel_et.preprocessing.images import IMAGE_SUFFIXES
from parallel_et.preprocessing.patches import Patches


def arguments(argv: Sequence[str]) -> Patches:
    """Parse the command line."""
    parser = Parser(
        "patches",
        'Cut patches from images, for a job with source = "patches.h5:/patches". The same command resumes after an '
        "interruption. Steps are applied in the order of this list.",
        "mpirun -n 4 python -m parallel_et patches images/ --size 26 --count 500000 --clamp 2 --dog 1 3",
    )
    kinds = f"{' '.join(IMAGE_SUFFIXES)}, or file.mat:VARIABLE"
    images = (
        f"files, folders or patterns; {kinds}; colours (a last axis of 3) become luminance, unless --colour is given"
    )
    parser.add_argument("inputs", metavar="IMAGES", nargs="+", help=images)
    parser.add_argument("--output", metavar="FILE", default="patches.h5", help="output file; default: patches.h5")
    parser.add_argument("--size", metavar="PIXELS", type=int, default=26, help="side of a patch in pixels; default: 26")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--count", metavar="N", type=int, help="number of patches at uniformly random positions")
    which.add_argument("--all", action="store_true", help="patches at all positions, overlapping")
    parser.add_argument(
        "--stride", metavar="PIXELS", type=int, help="distance between positions with --all; default: 1"
    )
    parser.add_cutting("a file that is not an image, or an image smaller than a patch")
    parser.add_argument("--colour", action="store_true", help="keep red, green and blue, each filtered separately")
    steps = parser.add_argument_group("steps on whole images")
    noise = "add Gaussian noise of standard deviation SIGMA; the clean images are stored as /truth"
    steps.add_argument("--noise", metavar="SIGMA", type=float, help=noise)
    clamp = "set the brightest PERCENT of an image's pixels to the value at that percentile"
    steps.add_argument("--clamp", metavar="PERCENT", type=float, help=clamp)
    dog = "difference of Gaussians with SIGMA and SIGMA2 pixels"
    steps.add_argument("--dog", metavar=("SIGMA", "SIGMA2"), nargs=2, type=float, help=dog)
    white = f"pseudo-whitening of Olshausen and Field: f exp(-(f/f0)^4), f0 = {WHITENING_CUTOFF} cycles per pixel"
    steps.add_argument("--whiten", action="store_true", help=white)
    steps = parser.add_argument_group("steps on patches")
    steps.add_argument("--mean-free", action="store_true", help="subtract the mean of each patch")
    zca = "whiten by the covariance of all patches, with EPS added to its eigenvalues"
    steps.add_argument("--zca", metavar="EPS", type=float, help=zca)
    contrast = "scale each patch to the largest magnitude PEAK"
    steps.add_argument("--contrast", metavar="PEAK", type=float, help=contrast)
    steps.add_argument(
        "--on-off", action="store_true", help="split values into two channels, their positive and negative parts"
    )
    scale = "scale all patches linearly to the range from LOW to HIGH"
    steps.add_argument("--scale", metavar=("LOW", "HIGH"), nargs=2, type=float, help=scale)
    parser.add_running()
    return parser.options(argv, Patches)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return ranks.from_root(lambda: arguments(argv)).cut(ranks)
