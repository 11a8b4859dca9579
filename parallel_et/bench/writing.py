"""The time to write one table from all ranks: by each writer, and by gathering the rows on the root."""

import shutil
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.storage.atomic import make_durable
from parallel_et.storage.output import WRITERS, Table, open_output, read_rows
from parallel_et.storage.row_tables import new_file, refuse_unwritable
from parallel_et.storage.writers import has_mpio

COLUMNS = 128
"""Doubles in a row."""
ROUNDS = 5
"""Repetitions."""


def measure_io(ranks: Ranks, megabytes: float, folder: Path) -> list[dict[str, Any]]:
    """Write a table by all writers in turn; return the median seconds until the file is durable under its name."""
    points = max(1, round(megabytes * 1e6 / (8 * COLUMNS)))
    shards = [Shard.of(points, 1, rank, ranks.size) for rank in range(ranks.size)]
    mine, next_one = shards[ranks.rank], shards[(ranks.rank + 1) % ranks.size]
    rows = content(mine)
    times: dict[str, list[float]] = {"gather": [], **{way: [] for way in WRITERS if way != "mpio" or has_mpio()}}
    directory = ranks.from_root(lambda: _make_directory(folder))
    try:
        for _ in range(ROUNDS):
            for way, found in times.items():
                path = directory / way / "out.h5"
                ranks.from_root(path.parent.mkdir)
                ranks.barrier()
                begun = perf_counter()
                if way == "gather":
                    gather(path, shards, rows, ranks)
                else:
                    with open_output(path, {"rows": Table((points, COLUMNS), np.float64)}, ranks, writer=way) as out:
                        out.write(mine.first, {"rows": rows})
                found.append(ranks.max(perf_counter() - begun))
                assert np.array_equal(read_rows(path, "rows", next_one.first, next_one.last), content(next_one)), way
                ranks.barrier()
                if ranks.is_root:
                    shutil.rmtree(path.parent)
    finally:
        if ranks.is_root:
            shutil.rmtree(directory, ignore_errors=True)
    size, gathered = points * 8 * COLUMNS / 1e6, float(np.median(times["gather"]))
    return [
        {
            "way": way,
            "ranks": ranks.size,
            "megabytes": size,
            "rounds": ROUNDS,
            "seconds": float(np.median(found)),
            "fastest": min(found),
            "megabytes_per_second": size / float(np.median(found)),
            "ratio": float(np.median(found)) / gathered,
        }
        for way, found in times.items()
    ]


def content(shard: Shard) -> np.ndarray:
    """Return the rows of a shard, (n, COLUMNS), each different."""
    return np.add.outer(np.arange(shard.first, shard.last), np.linspace(0.0, 1.0, COLUMNS, endpoint=False))


def gather(path: Path, shards: list[Shard], rows: np.ndarray, ranks: Ranks) -> None:
    """Write a table by the root alone, to which the other ranks send their rows in turn."""
    if not ranks.is_root:
        ranks.comm.Send(rows, 0)
    else:
        temporary = path.with_suffix(".part")
        with new_file(temporary) as file:
            table = file.create_dataset("rows", (shards[0].points, COLUMNS), np.float64)
            for rank, shard in enumerate(shards):
                if rank:
                    rows = np.empty((len(shard), COLUMNS))
                    ranks.comm.Recv(rows, rank)
                table[shard.first : shard.last] = rows
        make_durable(temporary)
        temporary.replace(path)
        make_durable(path.parent)
    ranks.barrier()


def _make_directory(folder: Path) -> Path:
    with refuse_unwritable(folder):
        return Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
