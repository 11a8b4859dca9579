"""``python -m parallel_et.sounds RECORDINGS…``: from recordings to a file of segments, written by all ranks."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

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
from parallel_et.errors import UserError
from parallel_et.parallel.ranks import Ranks
from parallel_et.prepare.album import Places
from parallel_et.prepare.cutting import Sweep
from parallel_et.prepare.recordings import Recordings, SoundSteps, Spectrogram
from parallel_et.prepare.waves import ENDINGS, find_recordings, read_recording

LENGTH = "12.5ms"
SPECTROGRAM = ("bands", "hertz", "window", "hop", "windows", "top", "range")
"""Options that make sense with --spectrogram alone."""
UNITS = {"ms": 1e-3, "s": 1.0}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "sounds",
        'Cut segments from recordings, for a job with source = "sounds.h5:/segments". Given again, the command goes on '
        "where it was interrupted. The steps that are asked for are taken in the order in which they are listed here.",
        "mpirun -n 4 python -m parallel_et.sounds recordings/ --rate 16000 --trim 40 --scale 5 --length 12.5ms",
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
    add_common(parser, "a file that is no recording, or one shorter than a segment")
    steps = parser.add_argument_group("steps on whole recordings")
    steps.add_argument("--channel", metavar="K", type=int, help="take channel 1, 2, …; the mean of all by default")
    steps.add_argument("--rate", metavar="HZ", type=int, help="resample what has another sampling rate")
    trim = "cut off at both ends what stays more than DB below the recording's peak"
    steps.add_argument("--trim", metavar="DB", type=float, help=trim)
    scale = "multiply each recording so that its largest magnitude is PEAK"
    steps.add_argument("--scale", metavar="PEAK", type=float, help=scale)
    add_spectrogram(parser)
    add_running(parser)
    args = parser.parse_args(argv)
    check(args, parser)
    return args


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


def check(args: argparse.Namespace, parser: Parser) -> None:
    """Refuse what makes no sense."""
    positive = "a positive number"
    checks = [
        (option, value is None or 0 < value < np.inf, positive)
        for option, value in vars(args).items()
        if option
        in ("count", "npy_rate", "channel", "rate", "trim", "scale", "bands", "window", "hop", "windows", "top")
    ]
    (low, high), (bottom, top) = args.hertz or (1, 2), args.range or (0, 1)
    checks += [
        (
            "length",
            args.length is None or samples_of(args.length, 10**6) > 0,
            "a time as 12.5ms, 0.1s or 200 (samples)",
        ),
        ("step", args.step is None or samples_of(args.step, 10**6) > 0, "a time as 1ms, 0.1s or 20 (samples)"),
        ("seed", 0 <= args.seed < 2**63, "a number from 0 to 2^63 - 1"),
        ("hertz", 0 < low < high < np.inf, "a positive number and a larger one"),
        ("range", -SINGLE <= bottom < top <= SINGLE, "a number and a larger one"),
        (
            "length",
            args.length is None or not args.spectrogram,
            "none, as with --spectrogram it follows from --windows",
        ),
    ]
    checks += [
        (option, vars(args)[option] is None or args.spectrogram, "--spectrogram with it") for option in SPECTROGRAM
    ]
    refuse_bad(parser, args, checks)


def samples_of(time: str, rate: int) -> int:
    """A time as samples; 0 if it is none."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?(ms|s)", time)
    if found is None:
        plain = re.fullmatch(r"(\d+)( samples?)?", time)
        return int(plain[1]) if plain else 0
    return round(float(found[1]) * UNITS[found[2]] * rate)


def spectrogram_of(args: argparse.Namespace) -> Spectrogram | None:
    """How spectrograms are made, if they are wanted."""
    if not args.spectrogram:
        return None
    names = {"top": "decibels", "range": "scale"}
    given = {names.get(option, option): vars(args)[option] for option in SPECTROGRAM}
    stated: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None}
    return Spectrogram(**stated)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    return run(ranks, args, lambda sweep: sounds(args, sweep))


def sounds(args: argparse.Namespace, sweep: Sweep) -> str:
    """Look at the recordings, then cut, prepare and write the segments; returns the name of their table."""
    ranks, to = sweep.ranks, spectrogram_of(args)
    files = ranks.from_root(lambda: find_recordings(args.inputs))
    ranks.from_root(lambda: refuse_taken(args))
    rate = args.rate or ranks.from_root(lambda: first_rate(args, files))
    length = to.length if to else in_samples("--length", args.length or LENGTH, rate)
    step = in_samples("--step", args.step, rate) if args.step else to.hop if to else 1
    if to and 2 * to.hertz[1] > rate:
        raise UserError(f"--hertz: expected at most half of the sampling rate of {rate} Hz, found {to.hertz[1]:g}")
    steps = SoundSteps(args.channel, args.rate, args.trim, args.scale, to)
    album = Recordings(steps, rate, length, args.npy_rate, sweep.between)
    look_at(args, sweep, album, files)
    for line in told(album):
        sweep.report.say(line)
    places = Places(album, args.count, 1 if args.count else step, args.seed)
    words = f"of {length} samples ({1000 * length / rate:g} ms at {rate} Hz)"
    cut(args, sweep, album, places, command_of("sounds", args), words)
    return album.unit


def first_rate(args: argparse.Namespace, files: Sequence[str]) -> int:
    """The sampling rate of the first file; of the first good one, if bad ones are skipped."""
    for file in files:
        try:
            return read_recording(file, args.npy_rate).rate
        except UserError:
            if args.bad == "fatal":
                raise
    raise UserError(f"{' '.join(args.inputs)}: expected recordings, found {len(files)} bad files alone")


def in_samples(option: str, time: str, rate: int) -> int:
    """A time of the command line as samples."""
    if not (samples := samples_of(time, rate)):
        raise UserError(f"{option}: expected at least one sample, which takes {1000 / rate:g} ms, found {time}")
    return samples


def told(album: Recordings) -> list[str]:
    """What was done to the recordings, for people."""
    lines, notes, seconds = [], [entry.notes for entry in album.entries], [e.width / album.rate for e in album.entries]
    if others := sorted({n["recorded at"] for n in notes} - {album.rate}):
        count = sum(n["recorded at"] != album.rate for n in notes)
        lines.append(
            f"{count} of {len(notes)} recordings resampled to {album.rate} Hz, from {', '.join(map(str, others))}"
        )
    if album.steps.trim is not None:
        ends = np.array([n["seconds trimmed"] for n in notes])
        each = ends.sum(1)
        lines.append(
            f"{ends.sum():.3g} s of silence trimmed, {ends[:, 0].sum():.3g} s of it before the sound; "
            f"{each.min():.3g} to {each.max():.3g} s of a recording; {sum(seconds):.4g} s are left"
        )
    if album.steps.scale is not None:
        factors = [n["factor"] for n in notes]
        lines.append(f"each recording multiplied, by {min(factors):.3g} to {max(factors):.3g}")
    return lines
