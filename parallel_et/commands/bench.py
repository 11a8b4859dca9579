"""``python -m parallel_et.bench``: one EM iteration beside the one matrix product that it cannot do without."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.commands import Parser
from parallel_et.em import PHASES, iterate
from parallel_et.errors import UserError
from parallel_et.models.base import Params
from parallel_et.parallel.ranks import Ranks
from parallel_et.process import peak_bytes, reset_peak
from parallel_et.setup import set_up
from parallel_et.workloads import WORKLOADS, Drawn, Workload

FEWEST, MOST = 7, 200
BLOCKS = (128, 256, 512, 1024, 2048)
"""Block sizes that the product is tried with, besides the one that the iteration has."""
FAR = (64, 1024, 10000)
"""Numbers of ranks that the scaling is predicted for."""
LARGE = 1 << 24
"""Bytes of a message that shows the bandwidth."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        "bench",
        "Measure one EM iteration of workloads of published sizes beside the product Y W in float64, in one process "
        "and on the same data; under mpirun also how well many ranks share the work.",
        "mpirun -n 2 python -m parallel_et.bench W3 M3 --profile",
    )
    known = [w.id for w in WORKLOADS]
    parser.add_argument("workloads", nargs="*", metavar="ID", help=f"{', '.join(known)}; all by default")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")
    parser.add_argument("--profile", action="store_true", help="also print the microseconds a point of each phase")
    parser.add_argument("--model-scaling", action="store_true", help="also predict the efficiency on many ranks")
    parser.add_argument("--seconds", type=float, default=4.0, help="time to spend on a measurement, 4 by default")
    parser.add_argument("--scale", type=float, default=1.0, help="take that share of the points")
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank")
    parser.add_argument("--temperature", type=float, help="instead of the workloads' own")
    parser.add_argument("--latency", type=float, metavar="US", help="of the network to predict for, in microseconds")
    parser.add_argument("--bandwidth", type=float, metavar="GB", help="of that network, in gigabytes a second")
    args = parser.parse_args(argv)
    for name in args.workloads:
        if name not in known:
            parser.error(f"expected {', '.join(known)}, found {name}")
    for name in ("seconds", "scale", "threads", "temperature", "latency", "bandwidth"):
        if getattr(args, name) is not None and getattr(args, name) <= 0:
            parser.error(f"--{name} must be above 0")
    return args


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    args = ranks.from_root(lambda: arguments(argv))
    if args.model_scaling and ranks.size == 1 and None in (args.latency, args.bandwidth):
        raise UserError("--model-scaling: expected two ranks or more, or --latency and --bandwidth, found one rank")
    ranks.limit_threads()
    rows = []
    for workload in WORKLOADS:
        if args.workloads and workload.id not in args.workloads:
            continue
        if args.temperature is not None:
            workload = replace(workload, temperature=args.temperature)
        rows.append(compare(workload, ranks, args))
        if ranks.is_root and not args.json:
            print(table(rows[-1], args.profile, title=len(rows) == 1), flush=True)
    if args.model_scaling:
        network = measure_network(ranks, args)
        for row in rows:
            row["scaling"] = predict(row, *network)
        if ranks.is_root and not args.json:
            print(scaling_table(rows, *network), flush=True)
    if ranks.is_root and args.json:
        print(json.dumps(rows, indent=1), flush=True)
    return 0


def compare(workload: Workload, ranks: Ranks, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a workload on one rank, and on several also with the same work for all and the same for each."""
    points = max(64, round(workload.points * args.scale))
    if ranks.size == 1:
        return measure(workload, points, ranks, args)
    single = ranks.on_root_alone(lambda root: measure(workload, points, root, args))
    strong = measure(workload, points, ranks, args)
    weak = measure(workload, points * ranks.size, ranks, args)
    return {
        **strong,
        "floor_us_per_point": single["floor_us_per_point"],
        "ratio": args.threads * ranks.size * strong["us_per_point"] / single["floor_us_per_point"],
        "one_rank": single,
        "strong": single["us_per_point"] / (ranks.size * strong["us_per_point"]),
        "weak": single["us_per_point"] / (ranks.size * weak["us_per_point"]),
    }


def measure(workload: Workload, points: int, ranks: Ranks, args: argparse.Namespace) -> dict[str, Any]:
    """Time the iteration, and on one rank in turn with it the product, until the time is up; medians of all."""
    source = Drawn(workload, points)
    problem, _, _ = set_up(workload.job(args.threads), source, ranks)
    params = source.nearby()
    knobs = problem.plan.at(0, params)
    iterate(problem, ranks, params, knobs)
    floors: dict[int, list[float]] = {}
    if ranks.size == 1:
        quickest = min(BLOCKS, key=lambda size: min(multiply(problem.rows, params, size) for _ in range(3)))
        floors = {problem.shard.block: [], quickest: []}
    reset_peak()
    times: list[float] = []
    infos, begun = [], perf_counter()
    while ranks.of_root(len(times) < FEWEST or (len(times) < MOST and perf_counter() - begun < args.seconds)):
        for size, found in floors.items():
            found.append(multiply(problem.rows, params, size))
        ranks.meet()
        start = perf_counter()
        _, info = iterate(problem, ranks, params, knobs)
        times.append(ranks.max(perf_counter() - start))
        infos.append(info)
    seconds = float(np.median(times))
    low, high = np.percentile(times, [25, 75])
    floor = min((float(np.median(found)) for found in floors.values()), default=np.nan)
    scheme = problem.scheme
    states = len(scheme.states) + (workload.causes - scheme.candidates) * scheme.singletons
    return {
        "id": workload.id,
        "what": workload.what,
        "model": workload.model,
        "N": points,
        "D": workload.dims,
        "H": workload.causes,
        "candidates": workload.candidates,
        "gamma": workload.gamma,
        "temperature": workload.temperature,
        "ranks": ranks.size,
        "threads": args.threads,
        "block": problem.shard.block,
        "states": states,
        "repetitions": len(times),
        "spread": float(high - low) / seconds,
        "us_per_point": 1e6 * seconds / points,
        "floor_us_per_point": 1e6 * floor / points,
        "ratio": args.threads * seconds / floor,
        "most": workload.most,
        "ns_per_state_and_100_dims": 1e9 * seconds / points / states / max(1.0, workload.dims / 100),
        "most_ns": workload.most_ns,
        "ns_per_state": 1e9 * seconds / points / states,
        "points_per_second": points / seconds,
        "peak_mb": ranks.max(peak_bytes()) / 1e6,
        "shard_mb": ranks.max(problem.rows.nbytes) / 1e6,
        "message_mb": sum(16 * int(np.prod(s)) for s in problem.model.statistics_like(problem.model.stages[0]).values())
        / 1e6,
        "phases": {phase: 1e6 / points * float(np.median([i.seconds[phase] for i in infos])) for phase in PHASES},
    }


def multiply(rows: np.ndarray, params: Params, size: int) -> float:
    """Seconds that Y W takes in blocks of that size."""
    W = np.ascontiguousarray(params.W)
    out = np.empty((size, W.shape[1]))
    begun = perf_counter()
    for first in range(0, len(rows), size):
        Y = rows[first : first + size, : len(W)]
        np.dot(Y, W, out=out[: len(Y)])
    return perf_counter() - begun


def table(row: dict[str, Any], with_phases: bool, title: bool) -> str:
    """The figures of a workload in a line, and maybe those of its phases below it."""
    many = "strong" in row
    columns = {
        "id": f"{row['id']:3}",
        "model": f"{row['model']:5}",
        "N": f"{row['N']:6}",
        "D": f"{row['D']:4}",
        "H": f"{row['H']:4}",
        "H'": f"{row['candidates']:2}",
        "g": f"{row['gamma']:2}",
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
        shares = [f"{phase} {spent:.3g} ({spent / whole:.0%})" for phase, spent in row["phases"].items()]
        lines.append("     us a point: " + ", ".join(shares))
    return "\n".join(lines)


def measure_network(ranks: Ranks, args: argparse.Namespace) -> tuple[float, float]:
    """Seconds that a message takes from rank to rank, and bytes a second; measured where not given."""
    steps = max(1, (ranks.size - 1).bit_length())
    if ranks.size > 1:
        small, large = (time_of_sum(ranks, size) for size in (1, LARGE // 8))
    latency = args.latency * 1e-6 if args.latency else small / steps
    bandwidth = args.bandwidth * 1e9 if args.bandwidth else 2 * LARGE / large
    return ranks.of_root((latency, bandwidth))


def time_of_sum(ranks: Ranks, size: int) -> float:
    """Seconds of a sum of that many integers over the ranks."""
    values, times = np.zeros(size, np.int64), []
    for _ in range(20):
        ranks.meet()
        begun = perf_counter()
        ranks.sum(values)
        times.append(perf_counter() - begun)
    return ranks.max(float(np.median(times)))


def predict(row: dict[str, Any], latency: float, bandwidth: float) -> dict[str, Any]:
    """Efficiency on many ranks, with the same points for all (strong) and for each (weak), from measured parts.

    A rank's share of the points takes its share of the time; what every rank prepares and the root's M-step stay as
    they are; a reduction and a broadcast take the latency for each doubling of the ranks and twice the size of
    what they move.
    """
    one = row.get("one_rank", row)
    phases = {phase: 1e-6 * spent * one["N"] for phase, spent in one["phases"].items()}
    points = sum(phases[phase] for phase in ("select", "states", "statistics"))
    fixed = phases["prepare"] + phases["mstep"]
    moved = 1e6 * one["message_mb"] + 8 * one["D"] * one["H"]
    blocks = -(-one["N"] // one["block"])

    def talk(ranks: int) -> float:
        return 2 * latency * (ranks - 1).bit_length() + 2 * moved / bandwidth

    def time_on(ranks: int) -> float:
        return points * -(-blocks // ranks) / blocks + fixed + talk(ranks)

    def first(found: Callable[[int], bool]) -> int | None:
        return next((ranks for ranks in (2**k for k in range(1, 31)) if found(ranks)), None)

    return {
        "strong": {ranks: (points + fixed) / (ranks * time_on(ranks)) for ranks in FAR},
        "weak": {ranks: (points + fixed) / (points + fixed + talk(ranks)) for ranks in FAR},
        "root_dominates_at": first(lambda ranks: fixed > points / ranks),
        "network_dominates_at": first(lambda ranks: talk(ranks) > points / ranks),
    }


def scaling_table(rows: list[dict[str, Any]], latency: float, bandwidth: float) -> str:
    """The predictions in lines."""
    lines = [
        f"predicted for a latency of {latency * 1e6:.1f} us and {bandwidth / 1e9:.2f} GB/s, from the phases above:",
        "id   "
        + "".join(f"{f'on {ranks} ranks: strong, weak':>33}" for ranks in FAR)
        + "   root, network dominate from",
    ]
    for row in rows:
        found = row["scaling"]
        cells = "".join(f"{found['strong'][ranks]:>24.1%}, {found['weak'][ranks]:>6.1%} " for ranks in FAR)
        starts = ", ".join(str(found[f"{who}_dominates_at"] or "never") for who in ("root", "network"))
        lines.append(f"{row['id']:5}{cells}   {starts} ranks, with {row['N']} points")
    return "\n".join(lines)
