"""Which room of the package may know which: a lower one never imports a higher, and MPI and HDF5 stay in theirs."""

import ast
from pathlib import Path

import pytest

import parallel_et

PACKAGE = Path(*parallel_et.__path__)
KNOWS = {
    # room: what it may import, besides errors
    "control": (),
    "kernels": (),
    "parallel": ("control", "kernels"),
    "io": ("control", "kernels", "parallel"),
    "core": ("control", "kernels", "parallel"),
    "models": ("core", "kernels"),
    "schemes": ("core", "kernels"),
    "data": ("core", "io", "kernels", "models", "parallel"),
    "prepare": ("control", "core", "io", "parallel"),
    "runs": ("control", "core", "data", "io", "kernels", "models", "parallel", "schemes"),
    "sklearn": ("parallel", "runs"),
    "report": ("control", "core", "data", "io", "runs"),
    "bench": ("control", "core", "data", "io", "kernels", "models", "parallel", "runs"),
    "papers": ("control", "core", "data", "io", "parallel", "prepare", "report", "runs"),
    "commands": (
        "bench",
        "control",
        "core",
        "data",
        "io",
        "kernels",
        "papers",
        "parallel",
        "prepare",
        "report",
        "runs",
    ),
}
ONLY = {"mpi4py": {"parallel"}, "h5py": {"io", "runs"}}
TOP = 40
"""Lines of a module that lies in no room, at most."""


def imports(path):
    """The modules that a file imports, wherever in it; of ours as room.module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "parallel_et":
            yield from (f"parallel_et.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_every_room_is_listed():
    assert set(KNOWS) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@pytest.mark.parametrize("room", KNOWS)
def test_a_room_knows_only_what_it_may(room):
    wrong = []
    for path in (PACKAGE / room).rglob("*.py"):
        for module in imports(path):
            first, _, rest = module.partition(".")
            if first in ONLY and room not in ONLY[first]:
                wrong.append(f"{path.name}: {module}")
            other = rest.partition(".")[0]
            starts = path.name == "__main__.py" and other == "start"
            if first == "parallel_et" and other not in ("", room, "errors", *KNOWS[room]) and not starts:
                wrong.append(f"{path.name}: {module}")
    assert wrong == []


def test_nobody_knows_each_other_in_a_circle():
    assert all(room not in KNOWS[other] for room, others in KNOWS.items() for other in others)


def test_what_lies_in_no_room_is_small():
    assert [path.name for path in PACKAGE.glob("*.py") if len(path.read_text().splitlines()) > TOP] == []
