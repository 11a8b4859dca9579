"""Expectation truncation: candidates by preselection, then all their combinations up to gamma causes (ET Alg. 1)."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.models.base import Model
from parallel_et.posterior.states import Posterior, States, count_states
from parallel_et.schema import MOST, Section

MOST_GAMMA = 20
MOST_STATES = 1 << MOST_GAMMA
"""States a point: those of so many causes, in any combination."""


class ETOptions(Section):
    """The keys of [inference] for et."""

    scheme: Literal["et"] = Field("et", description="expectation truncation")
    candidates: int = Field(ge=1, le=MOST, description="preselected causes a point, H'")
    gamma: int = Field(ge=1, le=MOST_GAMMA, description="most causes active in a considered state")
    singletons: bool = Field(False, description="also consider every cause alone, candidate or not")

    def mistakes(self, causes: int | None) -> list[tuple[str, str, object]]:
        """What does not fit a model with that many causes: key, what was expected, what was found."""
        wrong: list[tuple[str, str, object]] = []
        if causes is not None and self.candidates > causes:
            wrong.append(("candidates", f"at most model.causes = {causes}", self.candidates))
        if self.gamma > self.candidates:
            wrong.append(("gamma", f"at most inference.candidates = {self.candidates}", self.gamma))
        elif count_states(self.candidates, self.gamma) > MOST_STATES:
            wrong.append(("gamma", f"at most {MOST_STATES} states a point", count_states(self.candidates, self.gamma)))
        return wrong


class ExpectationTruncation:
    """q_n on K_n = the states of at most gamma of the H' candidates, optionally with all single causes."""

    Options: type[Section] = ETOptions

    def __init__(self, options: Any, causes: int) -> None:
        self.candidates, self.gamma, self.singletons = self.extent(options, causes)
        self.states = States.up_to(self.candidates, self.gamma)

    def extent(self, options: ETOptions, causes: int) -> tuple[int, int, bool]:
        """Candidates, most active causes, and whether single causes outside the candidates count."""
        return options.candidates, options.gamma, options.singletons and options.candidates < causes

    def raised(self, causes: int, most: int) -> "ExpectationTruncation | None":
        """One more active cause and, as far as there are, one more candidate; None if nothing is left to be added,
        or if it takes more than ``most`` states.
        """
        candidates, gamma = min(self.candidates + 1, causes), self.gamma + 1
        if gamma > causes or count_states(candidates, gamma) > most:
            return None
        options = ETOptions(candidates=candidates, gamma=gamma, singletons=self.singletons)
        return ExpectationTruncation(options, causes)

    def keep(self, points: int) -> dict[str, np.ndarray]:
        """What is to be kept of each point between iterations, and written to checkpoints: arrays (points, ...)."""
        return {}

    def infer(
        self,
        model: Model,
        ready: Any,
        Y: np.ndarray,
        temperature: float,
        phase: Callable[[str], None],
        kept: Mapping[str, np.ndarray] = {},
    ) -> Posterior:
        """The E-step of a block Y (n, width); ``phase`` is told what is being done, ``kept`` may be changed."""
        phase("select")
        seen = model.observe(ready, Y, self.singletons)
        if self.candidates < model.H:
            candidates = model.select(ready, seen, self.candidates)
        else:
            candidates = np.tile(np.arange(model.H, dtype=np.int32), (len(Y), 1))
        phase("states")
        return model.posterior(ready, seen, candidates, self.states, 1 / temperature)


SCHEME = ExpectationTruncation
