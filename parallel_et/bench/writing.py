"""What it takes to write one table from all ranks: by each way, and by gathering its rows on the root."""

import shutil
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.storage.atomic import make_durable
from parallel_et.storage.output import WAYS, Table, open_output, read_rows
from parallel_et.storage.row_tables import new_file, place_for
from parallel_et.storage.writers import has_mpio

COLUMNS = 128
"""Doubles of a row."""
ROUNDS = 5


def measure_io(ranks: Ranks, megabytes: float, folder: Path) -> list[dict[str, Any]]:
    """Write that much in turn by all ways there are; medians of the seconds until it is safe under its name."""
    points = max(1, round(megabytes * 1e6 / (8 * COLUMNS)))
    shards = [Shard.of(points, 1, rank, ranks.size) for rank in range(ranks.size)]
    mine, next_one = shards[ranks.rank], shards[(ranks.rank + 1) % ranks.size]
    rows = content(mine)
    times: dict[str, list[float]] = {"gather": [], **{way: [] for way in WAYS if way != "mpio" or has_mpio()}}
    place = ranks.from_root(lambda: _place(folder))
    try:
        for _ in range(ROUNDS):
            for way, found in times.items():
                path = place / way / "out.h5"
                ranks.from_root(path.parent.mkdir)
                ranks.meet()
                begun = perf_counter()
                if way == "gather":
                    gather(path, shards, rows, ranks)
                else:
                    with open_output(path, {"rows": Table((points, COLUMNS), np.float64)}, ranks, way=way) as out:
                        out.write(mine.first, {"rows": rows})
                found.append(ranks.max(perf_counter() - begun))
                assert np.array_equal(read_rows(path, "rows", next_one.first, next_one.last), content(next_one)), way
                ranks.meet()
                if ranks.is_root:
                    shutil.rmtree(path.parent)
    finally:
        if ranks.is_root:
            shutil.rmtree(place, ignore_errors=True)
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
    """The rows of a shard, (n, COLUMNS), each different."""
    return np.add.outer(np.arange(shard.first, shard.last), np.linspace(0.0, 1.0, COLUMNS, endpoint=False))


def gather(path: Path, shards: list[Shard], rows: np.ndarray, ranks: Ranks) -> None:
    """The plain way: the ranks in turn send their rows to the root, which writes them."""
    if not ranks.is_root:
        ranks.comm.Send(rows, 0)
    else:
        beside = path.with_suffix(".part")
        with new_file(beside) as file:
            table = file.create_dataset("rows", (shards[0].points, COLUMNS), np.float64)
            for rank, shard in enumerate(shards):
                if rank:
                    rows = np.empty((len(shard), COLUMNS))
                    ranks.comm.Recv(rows, rank)
                table[shard.first : shard.last] = rows
        make_durable(beside)
        beside.replace(path)
        make_durable(path.parent)
    ranks.meet()


def _place(folder: Path) -> Path:
    with place_for(folder):
        return Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
