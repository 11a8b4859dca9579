"""Selections by name."""

from typing import Any

from parallel_et.core.latent_states import Latents
from parallel_et.core.scheme import Selection
from parallel_et.schemes.selection.candidates import Random


def selection_of(options: Any, latents: Latents, count: int) -> Selection:
    """Return the selection of ``count`` candidates for the keys of [inference]."""
    name = getattr(options, "selection", "own")
    if name == "own" or count >= latents.atoms:
        return Selection()
    if name == "random":
        return Random()
    from parallel_et.schemes.selection.gp import GPSelection  # imports an optimiser

    return GPSelection(options.gp, latents, count)
