"""``python -m parallel_et compare DIR``: the reconstruction errors of a run and of classical NMF."""

import argparse
from collections.abc import Sequence

from parallel_et.cli import Parser, directory_and_files
from parallel_et.control.progress import Reporter
from parallel_et.data.stream import open_rows
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.reports.run_data import open_data
from parallel_et.runs.setup import fingerprint, model_and_block_size, survey
from parallel_et.runs.stored_run import read_on_all_ranks
from parallel_et.trials.comparison import LOSSES, STARTS, Starts, compare_with_nmf


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "compare",
        "Compare the reconstruction error of a run on its data with that of classical NMF (scikit-learn) with the "
        "same number of fields. All ranks compute the first error, the root computes the second.",
        "mpirun -n 4 python -m parallel_et compare runs/digits",
    )
    parser.add_argument("run", metavar="DIR", help="run directory; the run may still be in progress")
    starts = f"number of random starts of classical NMF; the best is used; default: {STARTS}"
    parser.add_argument("--starts", metavar="K", type=int, default=STARTS, help=starts)
    parser.add_argument("--seed", metavar="NUMBER", type=int, default=1, help="seed of the first start; default: 1")
    loss = "loss of classical NMF: squares (default) or divergence; the reported error is the squared error"
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
    """Run the command and return its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    report = Reporter(ranks.is_root, False)
    run = read_on_all_ranks(ranks, *directory_and_files(args), report.log)
    job = run.job
    ranks.limit_threads(job.run.threads)
    with ranks.synchronise_errors():
        source = open_data(run)
        shard = Shard.of(source.points, model_and_block_size(job, source)[2], ranks.rank, ranks.size)
        seen = survey(open_rows(source, shard, job.data.memory, job.run.threads), shard, source)
    if fingerprint(seen.digest, ranks) != run.metadata["data fingerprint"]:
        raise UserError(
            f"{source.name}: expected the data that the run was trained on, found other data of the same size"
        )
    found = compare_with_nmf(ranks, run, run.centred(source), Starts(args.starts, args.seed, args.loss), report.log)
    classical = found.classical
    unconverged = args.starts - classical.converged
    report.log(
        f"classical NMF with {job.model.causes} fields: reconstruction error {classical.error:.6g}, the best of "
        f"{args.starts} starts" + (f", {unconverged} starts did not converge" if unconverged else "")
    )
    where = "above" if found.excess >= 0 else "below"
    report.log(f"{job.model.name} is {abs(found.excess):.2%} {where} classical NMF".replace("%", " %"))
    return 0
