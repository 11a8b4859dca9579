"""Exact inference: all 2^H states, for few causes."""

from typing import Any, Literal

from pydantic import Field

from parallel_et.posterior.et import ExpectationTruncation
from parallel_et.schema import Section

MOST_CAUSES = 20


class ExactOptions(Section):
    """The keys of [inference] for exact."""

    scheme: Literal["exact"] = Field("exact", description=f"all states, for at most {MOST_CAUSES} causes")

    def mistakes(self, causes: int | None) -> list[tuple[str, str, object]]:
        """What does not fit a model with that many causes: key, what was expected, what was found."""
        few = causes is None or causes <= MOST_CAUSES
        return [] if few else [("scheme", f'model.causes at most {MOST_CAUSES} for "exact"', causes)]


class Exact(ExpectationTruncation):
    """The posterior itself: truncation with every cause a candidate and any number of them active."""

    Options = ExactOptions

    def extent(self, options: Any, causes: int) -> tuple[int, int, bool]:
        """All causes, any number of them."""
        return causes, causes, False


SCHEME = Exact
