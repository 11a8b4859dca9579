"""``python -m parallel_et bench``: the time of one EM iteration, relative to one matrix product."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from parallel_et.bench.measure import (
    EFFICIENCIES,
    PREDICTED_RANKS,
    Network,
    measure_computing,
    measure_network,
    measure_with_product,
    predict,
)
from parallel_et.bench.streaming import compare_streaming, stream_table
from parallel_et.bench.workloads import WORKLOADS
from parallel_et.bench.writing import measure_io
from parallel_et.cli import Parser
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        "bench",
        "Measure one EM iteration of workloads of published sizes, and of the product Y W in float64 on the same data. "
        "Under mpirun, also measure the parallel efficiency.",
        "mpirun -n 2 python -m parallel_et bench W3 M3 --profile",
    )
    known = [w.id for w in WORKLOADS]
    parser.add_argument("workloads", nargs="*", metavar="ID", help=f"{', '.join(known)}; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--profile", action="store_true", help="also print the time of each phase, in microseconds per point"
    )
    parser.add_argument("--model-scaling", action="store_true", help="also predict the efficiency on more ranks")
    parser.add_argument(
        "--computing",
        action="store_true",
        help="measure only the processor time of the ranks, and compare it with the prediction; ranks may share cores",
    )
    parser.add_argument(
        "--stream", action="store_true", help="compare rows that are read again in every pass with rows in memory"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds for each measurement; default: 4")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the points to use; default: 1")
    parser.add_argument("--block", type=int, help="points per block; default: computed from the sizes")
    parser.add_argument("--threads", type=int, default=1, help="threads per rank; default: 1")
    parser.add_argument("--temperature", type=float, help="temperature of the E-step; default: that of the workload")
    parser.add_argument("--latency", type=float, metavar="US", help="latency of the predicted network, in microseconds")
    parser.add_argument(
        "--bandwidth", type=float, metavar="GB", help="bandwidth of the predicted network, in gigabytes per second"
    )
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="speed at which a rank reads data that other ranks of its node wrote, in gigabytes per second",
    )
    parser.add_argument("--node", type=int, default=64, metavar="RANKS", help="ranks per node; default: 64")
    parser.add_argument("--io", action="store_true", help="measure only how fast all ranks write one file")
    parser.add_argument("--megabytes", type=float, default=400.0, help="size of the file of --io; default: 400")
    parser.add_argument("--folder", default=".", help="folder of the file of --io; default: the current folder")
    args = parser.parse_args(argv)
    for name in args.workloads:
        if name not in known:
            parser.error(f"expected {', '.join(known)}, found {name}")
    for name in (
        "seconds",
        "scale",
        "block",
        "threads",
        "temperature",
        "latency",
        "bandwidth",
        "memory",
        "node",
        "megabytes",
    ):
        if (value := getattr(args, name)) is not None and not 0 < value < inf:
            parser.error(f"--{name}: expected a number above 0, found {value}")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    asked = (args.latency and 1e-6 * args.latency, *(x and 1e9 * x for x in (args.bandwidth, args.memory)))
    if args.model_scaling and ranks.size == 1 and None in asked:
        words = "--latency, --bandwidth and --memory"
        raise UserError(f"--model-scaling: expected two ranks or more, or {words}, found one rank")
    ranks.limit_threads()
    if args.stream:
        streams = compare_streaming(ranks, args.scale, args.seconds, args.threads)
        if ranks.is_root:
            print(json.dumps(streams, indent=1) if args.json else stream_table(streams), flush=True)
        return 0
    if args.io:
        found = measure_io(ranks, args.megabytes, Path(args.folder))
        if ranks.is_root:
            print(json.dumps(found, indent=1) if args.json else io_table(found), flush=True)
        return 0
    rows = []
    for workload in WORKLOADS:
        if args.workloads and workload.id not in args.workloads:
            continue
        if args.temperature is not None:
            workload = replace(workload, temperature=args.temperature)
        if args.block is not None:
            workload = replace(workload, block=args.block)
        points = max(64, round(workload.points * args.scale))
        if args.computing:
            rows.append(measure_computing(workload, points, ranks, args.seconds))
            if ranks.is_root and not args.json:
                print(computing_line(rows[-1]), flush=True)
            continue
        rows.append(measure_with_product(workload, points, ranks, args.seconds, args.threads))
        if ranks.is_root and not args.json:
            print(table(rows[-1], args.profile, title=len(rows) == 1), flush=True)
    if args.model_scaling:
        measured = measure_network(ranks) if ranks.size > 1 else asked
        network = Network(*(a or m for a, m in zip(asked, measured, strict=True)))
        for row in rows:
            row["scaling"] = predict(row, network, args.node)
        if ranks.is_root and not args.json:
            print(scaling_table(rows, network, args.node), flush=True)
    if ranks.is_root and args.json:
        print(json.dumps(rows, indent=1), flush=True)
    return 0


def table(row: dict[str, Any], with_phases: bool, title: bool) -> str:
    """Return the figures of a workload in one line, and optionally of its phases in a second line."""
    many = "strong" in row
    columns = {
        "id": f"{row['id']:3}",
        "model": f"{row['model']:5}",
        "N": f"{row['N']:6}",
        "D": f"{row['D']:4}",
        "H": f"{row['H']:4}",
        "H'": f"{row['candidates']:2}",
        "g": f"{row['gamma'] or '':>2}",
        "states": f"{row['states']:6}",
        "Y W us": f"{row['floor_us_per_point']:7.3g}",
        "us/point": f"{row['us_per_point']:8.3g}",
        "ratio": f"{row['ratio']:6.2f}",
        "bar": f"{row['most'] or '':>5}",
        "spread": f"{row['spread']:6.0%}",
        "ns/state": f"{row['ns_per_state']:8.2f}",
        "/100 dims": f"{row['ns_per_state_and_100_dims']:9.2f}",
        "bar ns": f"{row['most_ns'] or '':>6}",
        "points/s": f"{row['points_per_second']:9.3g}",
        "peak MB": f"{row['peak_mb']:7.0f}",
        **({"strong": f"{row['strong']:6.0%}", "weak": f"{row['weak']:5.0%}"} if many else {}),
    }
    lines = ["  ".join(name.rjust(len(cell)) for name, cell in columns.items())] if title else []
    lines.append("  ".join(cell.rjust(len(name)) for name, cell in columns.items()))
    if with_phases:
        whole = sum(row["phases"].values())
        fractions = [f"{phase} {spent:.3g} ({spent / whole:.0%})" for phase, spent in row["phases"].items()]
        lines.append("     us per point: " + ", ".join(fractions))
    return "\n".join(lines)


def computing_line(row: dict[str, Any]) -> str:
    """Return the measured and predicted efficiency in one line."""
    found = " and ".join(f"{name} {efficiency:.1%}" for name, efficiency in row["computing"].items())
    return f"{row['id']} with {row['N']} points on {row['ranks']} ranks, without messages: {found} efficient"


def io_table(rows: list[dict[str, Any]]) -> str:
    """Return the figures of each way to write, one a line."""
    size, ranks, rounds = (rows[0][name] for name in ("megabytes", "ranks", "rounds"))
    lines = [
        f"{size:.0f} MB on {ranks} ranks, median of {rounds}, until safe on the disk:",
        f"{'way':8}{'seconds':>9}{'MB/s':>9}{'of gather':>11}",
    ]
    for row in rows:
        lines.append(f"{row['way']:8}{row['seconds']:9.3f}{row['megabytes_per_second']:9.0f}{row['ratio']:11.2f}")
    return "\n".join(lines)


def scaling_table(rows: list[dict[str, Any]], network: Network, on_node: int) -> str:
    """Return the predictions, one workload per line."""
    lines = [
        f"predicted from the phases above for {on_node} ranks per node, a latency of {network.latency * 1e6:.1f} us, "
        f"{network.bandwidth / 1e9:.2f} GB/s between nodes and {network.memory / 1e9:.2f} GB/s within:",
        "id   "
        + "".join(f"{f'on {ranks} ranks: strong, weak':>33}" for ranks in PREDICTED_RANKS)
        + "   root, network dominate from"
        + "".join(f", {share:.0%}" for share in EFFICIENCIES)
        + " up to",
    ]
    for row in rows:
        found = row["scaling"]
        cells = "".join(f"{found['strong'][ranks]:>24.1%}, {found['weak'][ranks]:>6.1%} " for ranks in PREDICTED_RANKS)
        starts = ", ".join(str(found[f"{who}_dominates_at"] or "never") for who in ("root", "network"))
        ends = "".join(f", {ranks}" for ranks in found["holds"].values())
        lines.append(f"{row['id']:5}{cells}   {starts}{ends} ranks, with {row['N']} points")
    return "\n".join(lines)
