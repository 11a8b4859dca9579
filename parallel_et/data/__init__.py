"""Sources of data points: files, arrays, and generators. A generator is a module, found by its name."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@cache
def generators() -> dict[str, Any]:
    """Return all generators by name: the modules of this package with a ``SOURCE``."""
    modules = [(m.name, import_module(f"{__name__}.{m.name}")) for m in iter_modules(__path__)]
    return {name: module.SOURCE for name, module in modules if hasattr(module, "SOURCE")}
