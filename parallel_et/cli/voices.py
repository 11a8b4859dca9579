"""``python -m parallel_et voices``: ten voices that say a sentence, as recordings for ``sounds``."""

import argparse
from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.control.progress import Reporter
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.speech import PROGRAM, RATE, SENTENCE, VOICES, Voice, speak


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "voices",
        f"Let {len(VOICES)} different male voices of {PROGRAM} say a sentence, a wave file of {RATE} Hz each. "
        "One process is enough.",
        "python -m parallel_et voices --output voices && python -m parallel_et sounds voices --trim 40 --scale 5",
    )
    parser.add_argument("--output", metavar="FOLDER", default="voices", help="where they go, voices by default")
    parser.add_argument("--sentence", metavar="TEXT", default=SENTENCE, help=f'"{SENTENCE}" by default')
    parser.add_argument("--speed", metavar="FACTOR", type=float, default=1.0, help="faster if above 1")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    args = parser.parse_args(argv)
    if not 0.5 <= args.speed <= 2:
        parser.error(f"--speed: expected a number from 0.5 to 2, found {args.speed}")
    if not args.sentence.strip():
        parser.error("--sentence: expected words, found none")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    report = Reporter(ranks.is_root, args.quiet)

    def alone() -> int:
        spoken: list[Voice] = []

        def told(voice: Voice) -> None:
            spoken.append(voice)
            report.step(len(spoken), f"{len(spoken)} of {len(VOICES)} voices")

        report.begin(len(VOICES), 0, unit="voices")
        return len(speak(args.output, args.sentence, args.speed, told))

    count = ranks.from_root(alone)
    report.say(f"result: {count} recordings in {args.output}")
    return 0
