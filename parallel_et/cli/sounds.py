"""``python -m parallel_et sounds RECORDINGS…``: a file of segments of recordings, written by all ranks."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.recordings import Spectrogram
from parallel_et.preprocessing.sounds import DEFAULT_LENGTH, Sounds
from parallel_et.preprocessing.wave_files import RECORDING_SUFFIXES


def arguments(argv: Sequence[str]) -> Sounds:
    """Parse the command line."""
    parser = Parser(
        "sounds",
        'Cut segments from recordings, for a job with source = "sounds.h5:/segments". The same command resumes after '
        "an interruption. Steps are applied in the order of this list.",
        "mpirun -n 4 python -m parallel_et sounds recordings/ --rate 16000 --trim 40 --scale 5 --length 12.5ms",
    )
    parser.add_argument(
        "inputs", metavar="RECORDINGS", nargs="+", help=f"files, folders or patterns; {' '.join(RECORDING_SUFFIXES)}"
    )
    parser.add_argument("--output", metavar="FILE", default="sounds.h5", help="output file; default: sounds.h5")
    length = f"length of a segment, e.g. 12.5ms, 0.1s or 200 (samples); default: {DEFAULT_LENGTH}"
    parser.add_argument("--length", metavar="TIME", help=length)
    which = parser.add_mutually_exclusive_group()
    step = "distance between segments, as --length; default: 1 sample, or one hop with --spectrogram"
    which.add_argument("--step", metavar="TIME", help=step)
    which.add_argument("--count", metavar="N", type=int, help="number of segments at uniformly random positions")
    parser.add_argument(
        "--npy-rate", metavar="HZ", type=int, help="sampling rate of .npy files (samples, or samples x channels)"
    )
    parser.add_cutting("a file that is not a recording, or a recording shorter than a segment")
    steps = parser.add_argument_group("steps on whole recordings")
    steps.add_argument(
        "--channel", metavar="K", type=int, help="use channel 1, 2, …; default: the mean of all channels"
    )
    steps.add_argument("--rate", metavar="HZ", type=int, help="resample recordings to this sampling rate")
    trim = "remove both ends where they are more than DB below the peak of the recording"
    steps.add_argument("--trim", metavar="DB", type=float, help=trim)
    scale = "scale each recording to the largest magnitude PEAK"
    steps.add_argument("--scale", metavar="PEAK", type=float, help=scale)
    add_spectrogram(parser)
    parser.add_running()
    return parser.options(argv, Sounds)


def add_spectrogram(parser: Parser) -> None:
    """Add the options of log-spectrograms; their defaults are from App. E.4 of the MCA paper."""
    default, steps = Spectrogram(), parser.add_argument_group("log-spectrograms of segments")
    what = "turn segments into log-spectrograms (bands, windows), as sounds.h5:/spectrograms"
    steps.add_argument("--spectrogram", action="store_true", help=what)
    steps.add_argument("--bands", metavar="N", type=int, help=f"number of frequency bands; default: {default.bands}")
    hertz = "lowest and highest band in Hz, the others at equal ratios; default: 100 4000"
    steps.add_argument("--hertz", metavar=("LOW", "HIGH"), nargs=2, type=float, help=hertz)
    window = f"length of the Hamming window; default: {default.window}"
    steps.add_argument("--window", metavar="SAMPLES", type=int, help=window)
    steps.add_argument("--hop", metavar="SAMPLES", type=int, help=f"distance between windows; default: {default.hop}")
    windows = f"number of windows per segment, which determines its length; default: {default.windows}"
    steps.add_argument("--windows", metavar="N", type=int, help=windows)
    top = f"dynamic range: values more than DB below the maximum are clipped; default: {default.decibels}"
    steps.add_argument("--top", metavar="DB", type=float, help=top)
    steps.add_argument(
        "--range", metavar=("LOW", "HIGH"), nargs=2, type=float, help="range of the scaled values; default: 0 10"
    )


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return ranks.from_root(lambda: arguments(argv)).cut(ranks)
