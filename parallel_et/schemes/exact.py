"""Exact inference: all states of a model with few causes."""

from typing import Any

from pydantic import Field

from parallel_et.core.latent_states import Latents
from parallel_et.core.options import SchemeOptions
from parallel_et.schemes.et import MAX_STATES, ExpectationTruncation


class ExactOptions(SchemeOptions):
    """The keys of [inference] for exact."""

    scheme: str = Field("exact", description=f"exact inference: all states, at most {MAX_STATES}")

    def inconsistencies(self, latents: Latents) -> list[tuple[str, str, object]]:
        if latents.states(latents.atoms, latents.atoms) <= MAX_STATES:
            return []
        return [("scheme", f'model.causes of at most {MAX_STATES} states in total for "exact"', latents.atoms)]


class Exact(ExpectationTruncation):
    """Exact inference: truncation with all causes as candidates and any number of active causes."""

    Options = ExactOptions

    def extent(self, options: Any, latents: Latents) -> tuple[int, int, bool]:
        """Return all causes as candidates, with any number of active causes."""
        return latents.atoms, latents.max_active_of(latents.atoms), False


SCHEME = Exact
