"""One file a model; a new file in here is found by its name, and by its aliases; a script registers its own."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from parallel_et.models.base import Model


@cache
def known() -> dict[str, type[Model]]:
    """All models by name: each module of this package that has a ``MODEL``, under its own name and its aliases."""
    found: dict[str, type[Model]] = {}
    for module in iter_modules(__path__):
        model = getattr(import_module(f"{__name__}.{module.name}"), "MODEL", None)
        if model is not None:
            found |= dict.fromkeys((module.name, *model.aliases), model)
    return found


def register(name: str, model: type[Model]) -> None:
    """Make a model of a script known in this process, under a name and its aliases, as if its file were in here."""
    known().update(dict.fromkeys((name, *model.aliases), model))
