"""``python -m parallel_et trials JOB.toml --count 50``: training with successive seeds, or values of a key."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.trials.runner import BEST_OF_TRIALS, CRITERIA, TrialsOptions, run_trials
from parallel_et.trials.sweep import run_sweep


def arguments(argv: Sequence[str]) -> TrialsOptions:
    """Parse the command line."""
    parser = Parser(
        "trials",
        "Train a job with successive seeds, and count the trials that find all causes. If the causes are not known, "
        "list the trials, the best first. The same command resumes after an interruption, and a larger --count adds "
        "trials. --vary compares values of a key by the held-out evidence.",
        "mpirun -n 2 python -m parallel_et trials jobs/et-2010/linca-bars-noisy.toml --count 50",
    )
    parser.add_job("job file")
    parser.add_argument("--count", type=int, default=50, help="number of trials; default: 50")
    parser.add_argument("--ranks-per-trial", type=int, default=1, metavar="K", help="ranks per trial; default: 1")
    vary = "values of a key, each run with all seeds; a second --vary runs all pairs of values"
    parser.add_argument("--vary", metavar="KEY=A,B,…", action="append", default=[], help=vary)
    best = "also count how often the best of M trials, by smallest sigma or largest free energy, finds all causes"
    parser.add_argument("--best", choices=CRITERIA, help=best)
    parser.add_argument(
        "--of", type=int, metavar="M", help=f"trials from which the best is selected; default: {BEST_OF_TRIALS}"
    )
    until = "end a trial once the same units have represented all (known) causes for N iterations"
    parser.add_argument("--until", type=int, metavar="N", help=until)
    where = (
        "file of the trials; default: runs/<job name>-trials.h5; with --vary a folder; default: runs/<job name>-vary"
    )
    parser.add_argument("--output", metavar="FILE", help=where)
    parser.add_argument("--fresh", action="store_true", help="start over; an earlier FILE is renamed")
    parser.add_max_time()
    return parser.options(argv, TrialsOptions)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    options = ranks.from_root(lambda: arguments(argv))
    return run_sweep(ranks, options) if options.vary else run_trials(ranks, options)
