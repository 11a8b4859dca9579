"""Allowed imports between the packages: a lower one never imports a higher one, and MPI and HDF5 stay in theirs."""

import ast
import importlib
from itertools import chain
from pathlib import Path

import pytest

import parallel_et

PACKAGE = Path(*parallel_et.__path__)
MAY_IMPORT = {
    # package: the packages that it may import, in addition to errors
    "control": (),
    "kernels": (),
    "parallel": ("control", "kernels"),
    "storage": ("control", "parallel"),
    "core": ("control", "kernels", "parallel"),
    "models": ("core", "kernels"),
    "schemes": ("core", "kernels"),
    "em": ("core", "kernels", "parallel"),
    "data": ("core", "storage", "kernels", "models", "parallel"),
    "preprocessing": ("control", "core", "data", "storage", "parallel"),
    "job": ("control", "core", "data", "models", "schemes"),
    "inference": ("core", "em", "kernels", "parallel", "schemes"),
    "runs": ("control", "core", "data", "em", "inference", "storage", "job", "kernels", "parallel", "schemes"),
    "trials": ("control", "core", "data", "inference", "storage", "job", "parallel", "runs"),
    "sklearn": ("core", "models", "parallel", "runs"),
    "reports": ("control", "core", "data", "em", "inference", "storage", "job", "runs", "trials"),
    "bench": ("control", "core", "data", "em", "storage", "job", "kernels", "models", "parallel", "runs"),
    "papers": (
        *("control", "core", "data", "em", "inference", "job", "parallel", "preprocessing", "reports", "runs"),
        *("storage", "trials"),
    ),
    "cli": (
        *("bench", "control", "core", "data", "inference", "job", "kernels", "papers", "parallel", "preprocessing"),
        *("reports", "runs", "storage", "trials"),
    ),
}
ONLY = {"mpi4py": {"parallel"}, "h5py": {"storage", "runs"}}
TOP_LINES = 44
"""Largest number of lines of a module that lies in no package."""
MODULES = {".".join(path.with_suffix("").relative_to(PACKAGE.parent).parts): path for path in PACKAGE.rglob("*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def imports(path):
    """Yield the modules that a file imports anywhere, also for type checkers only, and the imported names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield (inner, "") if inner in MODULES else (node.module, name.name)
        elif isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)


def test_every_package_is_listed():
    assert set(MAY_IMPORT) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_it_may(package):
    wrong = []
    for path in (PACKAGE / package).rglob("*.py"):
        for module, _ in imports(path):
            first, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            allowed = other in ("", package, "errors", *MAY_IMPORT[package])
            if (first in ONLY and package not in ONLY[first]) or (first == "parallel_et" and not allowed):
                wrong.append(f"{path.name}: {module}")
    assert wrong == []


@pytest.mark.parametrize("package", ["models", "schemes"])
def test_nothing_of_parallel_reaches_models_and_schemes_by_another_module(package):
    wrong = []
    for path in (PACKAGE / package).rglob("*.py"):
        for module, name in imports(path):
            if module.startswith("parallel_et.") and name:
                home = getattr(getattr(importlib.import_module(module), name), "__module__", module)
                if str(home).startswith("parallel_et.parallel"):
                    wrong.append(f"{path.name}: {module}.{name}")
    assert wrong == []


def test_packages_have_no_cycles():
    assert all(package not in MAY_IMPORT[other] for package, others in MAY_IMPORT.items() for other in others)


def test_modules_have_no_cycles():
    """Remove modules that import no others left, until none or a cycle is left."""
    left = {name: {module for module, _ in imports(path)} & set(MODULES) for name, path in MODULES.items()}
    while free := [name for name, others in left.items() if not others & set(left) - {name}]:
        for name in free:
            del left[name]
    assert sorted(left) == []


def test_modules_outside_packages_are_small():
    assert [path.name for path in PACKAGE.glob("*.py") if len(path.read_text().splitlines()) > TOP_LINES] == []


def test_runs_is_no_heap():
    assert len(list((PACKAGE / "runs").glob("*.py"))) <= 16


def public(kind):
    """Return the public methods that a class adds or inherits."""
    named = chain.from_iterable(vars(one).items() for one in kind.__mro__[:-1])
    return {name for name, value in named if callable(value) and name[0] != "_" and not isinstance(value, type)}


def test_the_contract_is_small():
    from parallel_et.core.model import Model
    from parallel_et.core.scheme import Scheme

    assert len(public(Model)) <= 10
    assert len(public(Scheme)) <= 3
    assert len((PACKAGE / "em/loop.py").read_text().splitlines()) <= 80
