"""``python -m parallel_et voices``: recordings of a sentence in ten synthetic voices, for ``sounds``."""

import argparse
from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.control.progress import Reporter
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.speech import SENTENCE, SPEECH_PROGRAM, VOICE_RATE_HZ, VOICES, Voice, record_voices


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "voices",
        f"Synthesise a sentence in {len(VOICES)} male voices of {SPEECH_PROGRAM}, wave files of {VOICE_RATE_HZ} Hz. "
        "One process is enough.",
        "python -m parallel_et voices --output voices && python -m parallel_et sounds voices --trim 40 --scale 5",
    )
    parser.add_argument("--output", metavar="FOLDER", default="voices", help="output folder; default: voices")
    parser.add_argument("--sentence", metavar="TEXT", default=SENTENCE, help=f'default: "{SENTENCE}"')
    parser.add_argument(
        "--speed", metavar="FACTOR", type=float, default=1.0, help="speed, above 1 is faster; default: 1"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    args = parser.parse_args(argv)
    if not 0.5 <= args.speed <= 2:
        parser.error(f"--speed: expected a number from 0.5 to 2, found {args.speed}")
    if not args.sentence.strip():
        parser.error("--sentence: expected words, found none")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    report = Reporter(ranks.is_root, args.quiet)

    def synthesise() -> int:
        spoken: list[Voice] = []

        def report_voice(voice: Voice) -> None:
            spoken.append(voice)
            report.update(len(spoken), f"{len(spoken)} of {len(VOICES)} voices")

        report.start(len(VOICES), 0, unit="voices")
        return len(record_voices(args.output, args.sentence, args.speed, report_voice))

    count = ranks.from_root(synthesise)
    report.log(f"result: {count} recordings in {args.output}")
    return 0
