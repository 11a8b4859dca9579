"""What tests need of the machine besides Python: Debian packages, which ``.ci/packages`` installs."""

import os
import shutil
from typing import NoReturn

import pytest

SEARCH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def need(*programs: str) -> None:
    """Skip the test where a program is not there; fail on CI, where all are."""
    if missing := [program for program in programs if shutil.which(program, path=SEARCH) is None]:
        without(f"expected {', '.join(missing)}, found none; .ci/packages, run by root, installs what the tests need")


def without(reason: str) -> NoReturn:
    """Skip the test, or on CI, where nothing may be missing, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
