"""``python -m parallel_et trials JOB.toml --count 50``: how often a job finds all causes, over seeds taken in order."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.parallel.communicator import Ranks
from parallel_et.trials.runner import MERIT, SET, TrialsOptions, run_trials
from parallel_et.trials.sweep import run_varied


def arguments(argv: Sequence[str]) -> TrialsOptions:
    """The command line."""
    parser = Parser(
        "trials",
        "Train a job with many seeds, its own and those after it, and count in how many trials all causes are found; "
        "where these are not known, tell which trial is best. Given again, the command goes on where it was "
        "interrupted, and a larger --count adds trials to those that are there. With --vary it does so for some values "
        "of a key, and tells which explains rows best that were not learned from.",
        "mpirun -n 2 python -m parallel_et trials jobs/et-2010/linca-bars-noisy.toml --count 50",
    )
    parser.add_job("the job file")
    parser.add_argument("--count", type=int, default=50, help="number of trials, 50 by default")
    parser.add_argument("--ranks-per-trial", type=int, default=1, metavar="K", help="ranks that share one trial")
    vary = "values of a key, each to be tried with all seeds; a second key makes all pairs; may be repeated"
    parser.add_argument("--vary", metavar="KEY=A,B,…", action="append", default=[], help=vary)
    best = "also tell how often the best of M trials finds all causes: that of smallest sigma or largest free energy"
    parser.add_argument("--best", choices=MERIT, help=best)
    parser.add_argument("--of", type=int, metavar="M", help=f"trials of which the best is taken, {SET} by default")
    until = "end a trial early once the same units have represented all causes, which must be known, for N iterations"
    parser.add_argument("--until", type=int, metavar="N", help=until)
    where = "one row a trial, by default runs/<job name>-trials.h5; with --vary a folder, runs/<job name>-vary"
    parser.add_argument("--output", metavar="FILE", help=where)
    parser.add_argument("--fresh", action="store_true", help="start over; what is in FILE is kept aside")
    parser.add_max_time()
    return parser.options(argv, TrialsOptions)


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    options = ranks.from_root(lambda: arguments(argv))
    return run_varied(ranks, options) if options.vary else run_trials(ranks, options)
