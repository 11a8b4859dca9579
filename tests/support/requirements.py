"""Requirements of tests: programs of Debian packages, which ``.ci/packages`` installs, and optional Python packages."""

import os
import shutil
from importlib import import_module
from types import ModuleType
from typing import NoReturn

import pytest

SEARCH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def need(*programs: str) -> None:
    """Skip the test if a program is missing, or fail if NOTHING_MISSING is set."""
    if missing := [program for program in programs if shutil.which(program, path=SEARCH) is None]:
        without(f"expected {', '.join(missing)}, found none; .ci/packages, run by root, installs what the tests need")


def without(reason: str) -> NoReturn:
    """Skip the test, or fail if NOTHING_MISSING is set."""
    if os.environ.get("NOTHING_MISSING"):
        pytest.fail(reason)
    pytest.skip(reason)


def need_package(name: str) -> ModuleType:
    """Import an optional package, or skip the test if the package is missing."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        without(f"expected {name}, found none ({error}); make venv installs what the tests need")
