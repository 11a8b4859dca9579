"""The cost of streaming: iterations over rows that are read again in every pass, relative to rows in memory."""

from dataclasses import replace
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.bench.workloads import WORKLOADS, draw_points, nearby_params
from parallel_et.data.files import FileRows
from parallel_et.em.loop import em_step
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import set_up
from parallel_et.storage.hdf5 import write_rows

POINTS = 100_000
"""Points in the files: patches of the workload W2, in single precision."""
MEMORY_FRACTION = 1 / 4
"""Fraction of its rows that a rank may keep in memory."""
MIN_REPETITIONS = 7
MAX_REPETITIONS = 100
FILES = {"npy": ("rows.npy", None), "hdf5": ("rows.h5:/plain", None), "hdf5 gzip": ("rows.h5:/gzip", "gzip")}
"""Name and compression of each kind of file."""


def compare_streaming(ranks: Ranks, scale: float, limit: float, threads: int) -> list[dict[str, Any]]:
    """Measure all kinds of files. The root writes them to a temporary directory, and all ranks read them."""
    workload = next(w for w in WORKLOADS if w.id == "W2")
    drawn = draw_points(workload, max(64, round(POINTS * scale)))
    params = nearby_params(drawn)
    directory = ranks.from_root(mkdtemp)
    rows = []
    try:
        for kind, (name, compression) in FILES.items():
            place = f"{directory}/{name}"
            ranks.from_root(lambda p=place, c=compression: write_rows(drawn, p, c))  # type: ignore[misc]
            with ranks.synchronise_errors():
                source = FileRows(place)
            shard = 4 * drawn.dims * -(-drawn.points // ranks.size)
            problems = []
            for memory in (None, max(1, int(shard * MEMORY_FRACTION))):
                job = workload.job(threads)
                job = replace(job, data=job.data.model_copy(update={"memory": memory}))
                problems.append(set_up(job, source, ranks)[0])
            kept, streamed = interleave(problems, params, ranks, limit)
            rows.append(
                {
                    "id": workload.id,
                    "file": kind,
                    "N": drawn.points,
                    "D": drawn.dims,
                    "H": workload.causes,
                    "ranks": ranks.size,
                    "threads": threads,
                    "shard_mb": shard / 1e6,
                    "held_mb": ranks.max(problems[1].rows.nbytes) / 1e6,
                    "repetitions": len(kept),
                    "us_per_point": 1e6 * float(np.median(kept)) / drawn.points,
                    "streamed_us_per_point": 1e6 * float(np.median(streamed)) / drawn.points,
                    "ratio": float(np.median(np.divide(streamed, kept))),
                }
            )
    finally:
        if ranks.is_root:
            rmtree(directory, ignore_errors=True)
    return rows


def interleave(problems: list[Any], params: Any, ranks: Ranks, limit: float) -> list[list[float]]:
    """Return the seconds of the iterations of each problem, which take turns until the time is up."""
    times: list[list[float]] = [[] for _ in problems]
    states = [problem.initial_state(params) for problem in problems]
    settings, begun = problems[0].schedule.settings(states[0]), perf_counter()
    for problem, state in zip(problems, states, strict=True):
        em_step(problem, ranks, state, settings)
    while ranks.broadcast_object(
        len(times[0]) < MIN_REPETITIONS or (len(times[0]) < MAX_REPETITIONS and perf_counter() - begun < limit)
    ):
        for problem, state, found in zip(problems, states, times, strict=True):
            ranks.barrier()
            start = perf_counter()
            em_step(problem, ranks, state, settings)
            found.append(ranks.max(perf_counter() - start))
    return times


def stream_table(rows: list[dict[str, Any]]) -> str:
    """Format the measurements as a table."""
    lines = ["id  file       N       D    H    shard MB  held MB  us/point kept  streamed   ratio"]
    for row in rows:
        lines.append(
            f"{row['id']:4}{row['file']:10} {row['N']:<7} {row['D']:<4} {row['H']:<4} {row['shard_mb']:8.1f} "
            f"{row['held_mb']:8.1f} {row['us_per_point']:14.3g} {row['streamed_us_per_point']:9.3g} {row['ratio']:7.2f}"
        )
    return "\n".join(lines)
