"""What tests need of the machine besides Python: Debian packages, which ``.ci/packages`` installs."""

import os
import shutil
from importlib import import_module
from types import ModuleType
from typing import NoReturn

import pytest

SEARCH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def need(*programs: str) -> None:
    """Skip the test where a program is not there; fail where all should be."""
    if missing := [program for program in programs if shutil.which(program, path=SEARCH) is None]:
        without(f"expected {', '.join(missing)}, found none; .ci/packages, run by root, installs what the tests need")


def without(reason: str) -> NoReturn:
    """Skip the test, or fail where nothing may be missing."""
    if os.environ.get("NOTHING_MISSING"):
        pytest.fail(reason)
    pytest.skip(reason)


def need_package(name: str) -> ModuleType:
    """A package of one's choice; skip the test where it is not there."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        without(f"expected {name}, found none ({error}); make venv installs what the tests need")
