"""What a scheme keeps of each point, beside a checkpoint: written and read by the ranks that own the points."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from parallel_et.errors import UserError
from parallel_et.io.output import Table, discard, open_output, read_rows
from parallel_et.kernels import fixed
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.shard import Shard

STEP = 4096


def place_of(checkpoint: Path) -> Path:
    """The file that goes with a checkpoint."""
    return checkpoint.with_name(f"{checkpoint.stem}.points.h5")


def save_kept(checkpoint: Path, kept: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Write the arrays (n, ...) of all ranks; returns their digest. Collective; OSError on all ranks if one has it."""
    path = place_of(checkpoint)
    ranks.from_root(lambda: remove_kept(checkpoint))
    tables = {name: Table((shard.points, *array.shape[1:]), array.dtype) for name, array in kept.items()}
    with open_output(path, tables, ranks) as output:
        output.write(shard.first, kept)
    return digest(kept, shard, ranks)


def load_kept(checkpoint: Path, kept: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Fill the arrays of all ranks; returns their digest, or what was wrong with them. Collective."""
    try:
        for name, array in kept.items():
            array[:] = read_rows(place_of(checkpoint), name, shard.first, shard.last)
        good = True
    except (UserError, OSError, TypeError, ValueError):
        good = False
    return digest(kept, shard, ranks) if not ranks.either(not good) else "unreadable"


def remove_kept(checkpoint: Path) -> None:
    """Remove the file that goes with a checkpoint, whole or not."""
    path = place_of(checkpoint)
    discard(path)
    path.unlink(missing_ok=True)


def digest(kept: Mapping[str, np.ndarray], shard: Shard, ranks: Ranks) -> str:
    """Of the values of all ranks and their places, whoever has them."""
    total = np.zeros(len(kept), np.uint64)
    for k, name in enumerate(sorted(kept)):
        for start in range(0, len(shard), STEP):
            rows = np.ascontiguousarray(kept[name][start : start + STEP])
            raw = rows.reshape(len(rows), -1).view(np.uint8)
            wide = np.zeros((len(rows), -(-raw.shape[1] // 8) * 8), np.uint8)
            wide[:, : raw.shape[1]] = raw
            total[k : k + 1] += fixed.digest(wide.view(np.uint64), shard.first + start)
    ranks.sum(total)
    return "".join(f"{int(value):016x}" for value in total)
