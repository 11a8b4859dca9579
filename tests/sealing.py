"""Sound files of a small run, and what somebody may have made of them."""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
from mpi4py import MPI
from problems import job_table

from parallel_et import fit
from parallel_et.io.result import Result
from parallel_et.io.sealed import TAIL, write_sealed


def small_result(name: str = "linca") -> Result:
    """Of a run of three iterations, D = 4, H = 3, with snapshots and the truth behind its data."""
    table = job_table({"name": name, "causes": 3}, {"candidates": 2, "gamma": 2}, {"temperature": 2.0})
    table["run"]["snapshots"] = 1
    Y = np.abs(np.random.default_rng(1).normal(size=(40, 4)))
    return replace(fit(table, Y, comm=MPI.COMM_SELF), truth={"W": np.ones((4, 2)), "pi": np.array(0.5)})


def change(path: Path, how: Callable[[h5py.File], object]) -> None:
    """Change what a sealed file holds, and its checksum with it."""
    content = BytesIO(path.read_bytes()[:-TAIL])
    with h5py.File(content, "r+") as file:
        how(file)
    write_sealed(path, content.getvalue())


def put(name: str, value: object) -> Callable[[h5py.File], None]:
    """Another value for a dataset, or for an attribute if the name has no slash; None for none at all."""

    def how(file: h5py.File) -> None:
        there = file if "/" in name else file.attrs
        if name in there:
            del there[name]
        if value is not None:
            there[name] = value

    return how
