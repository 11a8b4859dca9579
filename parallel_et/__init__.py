"""Expectation truncation and truncated variational EM on any number of MPI ranks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_et.runs.api import Trained, fit, load

__all__ = ["Trained", "fit", "load"]


def __getattr__(name: str) -> Any:
    """Load the library on first use, as commands listen for signals before they load anything."""
    if name in __all__:
        from parallel_et.runs import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
