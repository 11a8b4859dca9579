"""What it costs not to keep the rows: iterations over rows that are read again beside those over rows in memory."""

from dataclasses import replace
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.bench.workloads import WORKLOADS, nearby, sample
from parallel_et.data.files import FileRows
from parallel_et.em.loop import em_step
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import set_up
from parallel_et.storage.hdf5 import write_rows

POINTS = 100_000
"""Points in the files: of the patches of W2, in single precision."""
SHARE = 4
"""A rank may keep one part of so many of its rows."""
FEWEST, MOST = 7, 100
"""Repetitions."""
FILES = {"npy": ("rows.npy", None), "hdf5": ("rows.h5:/plain", None), "hdf5 gzip": ("rows.h5:/gzip", "gzip")}
"""What is compared: file and compression."""


def compare_streaming(ranks: Ranks, scale: float, limit: float, threads: int) -> list[dict[str, Any]]:
    """Measure all kinds of files, which the root writes to a temporary directory and all ranks read."""
    workload = next(w for w in WORKLOADS if w.id == "W2")
    drawn = sample(workload, max(64, round(POINTS * scale)))
    params = nearby(drawn)
    directory = ranks.from_root(mkdtemp)
    rows = []
    try:
        for kind, (name, compression) in FILES.items():
            place = f"{directory}/{name}"
            ranks.from_root(lambda p=place, c=compression: write_rows(drawn, p, c))  # type: ignore[misc]
            with ranks.together():
                source = FileRows(place)
            shard = 4 * drawn.dims * -(-drawn.points // ranks.size)
            problems = []
            for memory in (None, max(1, shard // SHARE)):
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
    """Seconds of the iterations of each problem, taken in turn until the time is up."""
    times: list[list[float]] = [[] for _ in problems]
    states = [problem.initial_state(params) for problem in problems]
    settings, begun = problems[0].schedule.settings(states[0]), perf_counter()
    for problem, state in zip(problems, states, strict=True):
        em_step(problem, ranks, state, settings)
    while ranks.of_root(len(times[0]) < FEWEST or (len(times[0]) < MOST and perf_counter() - begun < limit)):
        for problem, state, found in zip(problems, states, times, strict=True):
            ranks.meet()
            start = perf_counter()
            em_step(problem, ranks, state, settings)
            found.append(ranks.max(perf_counter() - start))
    return times


def stream_table(rows: list[dict[str, Any]]) -> str:
    """The figures in lines."""
    lines = ["id  file       N       D    H    shard MB  held MB  us/point kept  streamed   ratio"]
    for row in rows:
        lines.append(
            f"{row['id']:4}{row['file']:10} {row['N']:<7} {row['D']:<4} {row['H']:<4} {row['shard_mb']:8.1f} "
            f"{row['held_mb']:8.1f} {row['us_per_point']:14.3g} {row['streamed_us_per_point']:9.3g} {row['ratio']:7.2f}"
        )
    return "\n".join(lines)
