"""``python -m parallel_et compare DIR``: the reconstruction error of a run beside that of classical NMF."""

import argparse
from collections.abc import Sequence

from parallel_et.cli import Parser, trusted_run
from parallel_et.control.progress import Reporter
from parallel_et.data.stream import rows_of
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.reports.run_data import open_data
from parallel_et.runs.setup import fingerprint, size_up, survey
from parallel_et.runs.stored_run import read_together
from parallel_et.trials.comparison import LOSSES, STARTS, Starts, compare_with_nmf


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "compare",
        "Compare the reconstruction error of a run on its data with that of classical NMF with as many fields, by "
        "scikit-learn. All ranks do the first, the root alone the second.",
        "mpirun -n 4 python -m parallel_et compare runs/digits",
    )
    parser.add_argument("run", metavar="DIR", help="the directory of the run, which may still be going on")
    starts = f"random starts of classical NMF, of which the best counts; {STARTS} by default"
    parser.add_argument("--starts", metavar="K", type=int, default=STARTS, help=starts)
    parser.add_argument("--seed", metavar="NUMBER", type=int, default=1, help="of these; 1 by default")
    loss = "what classical NMF minimises: squares (by default), or the divergence; the squared error is told of both"
    parser.add_argument("--loss", choices=LOSSES, default="squares", help=loss)
    parser.add_trust()
    args = parser.parse_args(argv)
    for option, good, expected in (
        ("starts", args.starts > 0, "a positive number"),
        ("seed", 0 <= args.seed < 2**32, "a number from 0 to 2^32 - 1"),
    ):
        if not good:
            parser.error(f"--{option}: expected {expected}, found {vars(args)[option]}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    report = Reporter(ranks.is_root, False)
    run = read_together(ranks, *trusted_run(args), report.say)
    job = run.job
    ranks.limit_threads(job.run.threads)
    with ranks.together():
        source = open_data(run)
        shard = Shard.of(source.points, size_up(job, source)[2], ranks.rank, ranks.size)
        seen = survey(rows_of(source, shard, job.data.memory, job.run.threads), shard, source)
    if fingerprint(seen.digest, ranks) != run.about["data fingerprint"]:
        raise UserError(f"{source.name}: expected the data that the run was trained on, found others of the same size")
    found = compare_with_nmf(ranks, run, run.seen(source), Starts(args.starts, args.seed, args.loss), report.say)
    classical = found.classical
    rest = args.starts - classical.settled
    report.say(
        f"classical NMF with {job.model.causes} fields: reconstruction error {classical.error:.6g}, the best of "
        f"{args.starts} starts" + (f", of which {rest} had not settled" if rest else "")
    )
    where = "above" if found.excess >= 0 else "below"
    report.say(f"{job.model.name} is {abs(found.excess):.2%} {where} classical NMF".replace("%", " %"))
    return 0
