"""``python -m parallel_et merge POSTERIOR.h5``: images from overlapping patches, assembled by all ranks."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.merging import Merge


def arguments(argv: Sequence[str]) -> Merge:
    """Parse the command line."""
    parser = Parser(
        "merge",
        "Assemble images from the patches that patches --all has cut and infer has reconstructed. Each pixel is the "
        "mean over all its patches. If the image without noise is known, print the peak signal-to-noise ratio in dB.",
        "mpirun -n 4 python -m parallel_et merge posterior.h5 --output denoised.png",
    )
    patches = "output of infer for patches; or a file of patches, which are assembled without reconstruction"
    parser.add_argument("patches", metavar="FILE", help=patches)
    output = "image file, .png or, in full precision, .npy; a folder for several images"
    parser.add_argument("--output", metavar="PICTURE", required=True, help=output)
    truth = "image without noise; default: the image to which patches --noise added noise"
    parser.add_argument("--truth", metavar="IMAGE", help=truth)
    parser.add_argument("--peak", metavar="VALUE", type=float, default=255.0, help="value of white; default: 255")
    parser.add_argument("--fresh", action="store_true", help="replace an existing PICTURE")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    return parser.options(argv, Merge)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return ranks.from_root(lambda: arguments(argv)).merge(ranks)
