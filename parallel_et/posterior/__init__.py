"""One file an inference scheme; a new file in here is found by its name."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@cache
def known() -> dict[str, Any]:
    """All schemes by name: each module of this package that has a ``SCHEME``."""
    modules = [(m.name, import_module(f"{__name__}.{m.name}")) for m in iter_modules(__path__)]
    return {name: module.SCHEME for name, module in modules if hasattr(module, "SCHEME")}
