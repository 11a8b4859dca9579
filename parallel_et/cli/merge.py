"""``python -m parallel_et merge POSTERIOR.h5``: pictures of overlapping patches, put together by all ranks."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.merging import Merge


def arguments(argv: Sequence[str]) -> Merge:
    """The command line."""
    parser = Parser(
        "merge",
        "Put pictures together again of the patches that were cut from them by patches --all, as infer has "
        "reconstructed them: each pixel is the mean over all patches that have it. Where the picture without noise is "
        "known, the error is told in dB (peak signal-to-noise ratio).",
        "mpirun -n 4 python -m parallel_et merge posterior.h5 --output denoised.png",
    )
    patches = "what infer has written of patches; or a file of patches, which are then put together as they are"
    parser.add_argument("patches", metavar="FILE", help=patches)
    output = "a picture, .png or, in full precision, .npy; of several pictures a folder for them"
    parser.add_argument("--output", metavar="PICTURE", required=True, help=output)
    truth = "the picture without noise, to tell the error; known where the noise was added by patches --noise"
    parser.add_argument("--truth", metavar="IMAGE", help=truth)
    parser.add_argument("--peak", metavar="VALUE", type=float, default=255.0, help="what is white; 255 by default")
    parser.add_argument("--fresh", action="store_true", help="write it anew if PICTURE is there")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    return parser.options(argv, Merge)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return ranks.from_root(lambda: arguments(argv)).merge(ranks)
