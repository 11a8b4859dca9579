"""Exact inference: all states, for few causes."""

from typing import Any

from pydantic import Field

from parallel_et.core.latent_states import Latents
from parallel_et.core.options import SchemeOptions
from parallel_et.schemes.et import MOST_STATES, ExpectationTruncation


class ExactOptions(SchemeOptions):
    """The keys of [inference] for exact."""

    scheme: str = Field("exact", description=f"all states, of which there may be {MOST_STATES} at most")

    def mistakes(self, latents: Latents) -> list[tuple[str, str, object]]:
        if latents.states(latents.atoms, latents.atoms) <= MOST_STATES:
            return []
        return [("scheme", f'model.causes of at most {MOST_STATES} states in all for "exact"', latents.atoms)]


class Exact(ExpectationTruncation):
    """The posterior itself: truncation with every cause a candidate and any number of them active."""

    Options = ExactOptions

    def extent(self, options: Any, latents: Latents) -> tuple[int, int, bool]:
        """All causes, any number of them."""
        return latents.atoms, latents.most_of(latents.atoms), False


SCHEME = Exact
