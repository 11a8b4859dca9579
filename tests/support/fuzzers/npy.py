"""Damaged .npy files as the data of a run."""

import numpy as np
from damage import spoil

from parallel_et.data.files import FileRows
from parallel_et.runs.setup import largest_magnitudes

HEADERS = (
    "{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }",
    "{'descr': '%d', 'fortran_order': False, 'shape': (%d, 6), }",
    "{'descr': '<f%d', 'fortran_order': True, 'shape': (40, %d)}",
    "{'descr': '|S%d', 'fortran_order': False, 'shape': (%d,)}",
    "{'descr': [('a', '<f4', (%d,))], 'fortran_order': False, 'shape': (%d, 6)}",
    "{'descr': '<f8', 'fortran_order': %d, 'shape': %d}",
)
NUMBERS = (-1, 0, 1, 2, 4, 8, 16, 40, 2**31, 2**32, 2**61, 2**63, 2**64, 10**40)


def prepare(folder):
    table = np.random.default_rng(1).normal(size=(40, 6))
    kinds = (
        table,
        table.astype(">f4"),
        (9 * table).astype(np.int16),
        np.asfortranarray(table),
        table.reshape(40, 2, 3),
    )
    for number, rows in enumerate((*kinds, table > 0, table.astype(np.float16))):
        np.save(folder / f"seed-{number}.npy", rows)


def case(rng, folder):
    raw = rng.choice(sorted(folder.glob("seed-*.npy"))).read_bytes()
    if rng.random() < 0.2:
        header = str(rng.choice(HEADERS)) % tuple(NUMBERS[k] for k in rng.integers(0, len(NUMBERS), 2))
        raw = raw[:8] + len(header).to_bytes(2, "little") + header.encode() + raw[128:]
    if rng.random() < 0.9:
        raw = spoil(rng, raw, 128)
    (folder / "spoilt.npy").write_bytes(raw)
    check(FileRows(f"{folder}/spoilt.npy"))


def check(rows):
    """Read all rows, as a run does."""
    assert rows.points > 0
    assert rows.dims > 0
    whole = rows.read(0, rows.points)
    assert whole.shape[0] == rows.points
    assert whole.dtype in (np.float32, np.float64)
    largest_magnitudes(whole[:, : rows.dims], 0, rows.name)
    for first, last in ((0, 1), (rows.points - 1, rows.points)):
        assert rows.read(first, last).tobytes() == whole[first:last].tobytes()
