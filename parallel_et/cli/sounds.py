"""``python -m parallel_et sounds RECORDINGS…``: from recordings to a file of segments, written by all ranks."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.recordings import Spectrogram
from parallel_et.preprocessing.sounds import LENGTH, Sounds
from parallel_et.preprocessing.wave_files import ENDINGS


def arguments(argv: Sequence[str]) -> Sounds:
    """The command line."""
    parser = Parser(
        "sounds",
        'Cut segments from recordings, for a job with source = "sounds.h5:/segments". Given again, the command goes on '
        "where it was interrupted. The steps that are asked for are taken in the order in which they are listed here.",
        "mpirun -n 4 python -m parallel_et sounds recordings/ --rate 16000 --trim 40 --scale 5 --length 12.5ms",
    )
    parser.add_argument(
        "inputs", metavar="RECORDINGS", nargs="+", help=f"files, folders or patterns; {' '.join(ENDINGS)}"
    )
    parser.add_argument("--output", metavar="FILE", default="sounds.h5", help="sounds.h5 by default")
    length = f"of a segment, as 12.5ms, 0.1s or 200 (samples); {LENGTH} by default"
    parser.add_argument("--length", metavar="TIME", help=length)
    which = parser.add_mutually_exclusive_group()
    step = "from one segment to the next, as --length; all overlapping, 1 sample, by default (with --spectrogram a hop)"
    which.add_argument("--step", metavar="TIME", help=step)
    which.add_argument("--count", metavar="N", type=int, help="segments at random places, all places equally likely")
    parser.add_argument(
        "--npy-rate", metavar="HZ", type=int, help="sampling rate of .npy files: samples, or x channels"
    )
    parser.add_cutting("a file that is no recording, or one shorter than a segment")
    steps = parser.add_argument_group("steps on whole recordings")
    steps.add_argument("--channel", metavar="K", type=int, help="take channel 1, 2, …; the mean of all by default")
    steps.add_argument("--rate", metavar="HZ", type=int, help="resample what has another sampling rate")
    trim = "cut off at both ends what stays more than DB below the recording's peak"
    steps.add_argument("--trim", metavar="DB", type=float, help=trim)
    scale = "multiply each recording so that its largest magnitude is PEAK"
    steps.add_argument("--scale", metavar="PEAK", type=float, help=scale)
    add_spectrogram(parser)
    parser.add_running()
    return parser.options(argv, Sounds)


def add_spectrogram(parser: Parser) -> None:
    """The options of log-spectrograms, by default those of appendix E.4 of the MCA paper."""
    default, steps = Spectrogram(), parser.add_argument_group("log-spectrograms of segments")
    what = "turn segments into log-spectrograms (bands, windows), as sounds.h5:/spectrograms"
    steps.add_argument("--spectrogram", action="store_true", help=what)
    steps.add_argument("--bands", metavar="N", type=int, help=f"frequencies; {default.bands} by default")
    hertz = "lowest and highest of them, the others between in equal ratios; 100 4000 by default"
    steps.add_argument("--hertz", metavar=("LOW", "HIGH"), nargs=2, type=float, help=hertz)
    window = f"length of a Hamming window; {default.window} by default"
    steps.add_argument("--window", metavar="SAMPLES", type=int, help=window)
    steps.add_argument(
        "--hop", metavar="SAMPLES", type=int, help=f"from one window to the next; {default.hop} by default"
    )
    windows = f"in a segment, whose length follows from them; {default.windows} by default"
    steps.add_argument("--windows", metavar="N", type=int, help=windows)
    top = f"decibels below the highest of all values that are kept, fainter is clipped; {default.decibels} by default"
    steps.add_argument("--top", metavar="DB", type=float, help=top)
    steps.add_argument(
        "--range", metavar=("LOW", "HIGH"), nargs=2, type=float, help="what they become; 0 10 by default"
    )


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return ranks.from_root(lambda: arguments(argv)).cut(ranks)
