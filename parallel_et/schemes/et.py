"""Expectation truncation: preselected candidates, and all their combinations of at most gamma causes (ET Alg. 1)."""

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from parallel_et.core.latent_states import Latents, Table
from parallel_et.core.model import EnumeratingView
from parallel_et.core.posterior import Posterior
from parallel_et.core.schema import MAX_COUNT, Section
from parallel_et.core.scheme import Context, Scheme, Selection, initial_point_states_of
from parallel_et.core.types import Block, PointStates
from parallel_et.schemes.selection.candidates import SelectingOptions, select_candidates
from parallel_et.schemes.selection.choose import selection_of

MAX_GAMMA = 20
"""Largest number of active causes in a state."""
MAX_STATES = 1 << MAX_GAMMA
"""Largest number of states per point: all combinations of this many causes."""


class ETOptions(SelectingOptions):
    """The keys of [inference] for et."""

    scheme: str = Field("et", description="expectation truncation")
    candidates: int = Field(ge=1, le=MAX_COUNT, description="preselected causes per point, H'")
    gamma: int | None = Field(
        None,
        ge=1,
        le=MAX_GAMMA,
        description="maximum number of active causes in a considered state; required unless the model has a limit",
    )
    random: int = Field(0, ge=0, le=MAX_COUNT, description="number of candidates that are drawn at random")
    singletons: bool = Field(False, description="also consider all states with a single cause")

    def inconsistencies(self, latents: Latents) -> list[tuple[str, str, object]]:
        wrong: list[tuple[str, str, object]] = []
        if self.candidates > latents.atoms:
            wrong.append(("candidates", f"at most {latents.description}", self.candidates))
        elif self.random >= self.candidates:
            wrong.append(("random", f"less than inference.candidates = {self.candidates}", self.random))
        if self.gamma is None and latents.max_active is None:
            wrong.append(("gamma", "a value", None))
        elif self.gamma is not None and self.gamma > self.candidates:
            wrong.append(("gamma", f"at most inference.candidates = {self.candidates}", self.gamma))
        elif (count := latents.states(self.candidates, self.max_active(latents))) > MAX_STATES:
            wrong.append(("gamma", f"at most {MAX_STATES} states per point", count))
        return wrong

    def max_active(self, latents: Latents) -> int:
        """Return the largest number of active causes in a considered state."""
        return latents.max_active_of(min(self.candidates, self.gamma or self.candidates))


class ExpectationTruncation(Scheme):
    """Inference with K_n = the states of at most gamma of the H' candidates, optionally with all single causes."""

    Options: ClassVar[type[Section]] = ETOptions

    def __init__(self, options: Any, latents: Latents) -> None:
        self.candidates, self.max_active, self.singletons = self.extent(options, latents)
        self.random = getattr(options, "random", 0)
        self.selection = selection_of(options, latents, self.candidates)
        self.table = Table.of(latents, self.candidates, self.max_active)
        self.count = len(self.table)
        own = type(self).infer is ExpectationTruncation.infer
        self.pairs = self.candidates * (self.candidates - 1) // 2 if own else 0
        self.row_independent = own and type(self.selection) is Selection and not self.singletons
        self.description = f"{self.count} states per point" + " and all single causes" * self.singletons

    def extent(self, options: ETOptions, latents: Latents) -> tuple[int, int, bool]:
        """Return the number of candidates, gamma, and whether K_n includes single causes outside the candidates."""
        singletons = options.singletons and options.candidates < latents.atoms
        return options.candidates, options.max_active(latents), singletons

    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        context.phase("select")
        view = context.evaluator.observe(block, self.singletons)
        assert isinstance(view, EnumeratingView)
        candidates = select_candidates(self.selection, context, view, point_states, self.candidates, self.random)
        context.phase("states")
        return view.over_table(candidates, self.table, context.beta), point_states

    def single_atoms(self, context: Context, block: Block) -> np.ndarray:
        considered = np.zeros((len(block), context.evaluator.model.latents.atoms), bool)
        view, states = context.evaluator.observe(block, self.singletons), initial_point_states_of(self, len(block))
        candidates = select_candidates(self.selection, context, view, states, self.candidates, self.random)
        np.put_along_axis(considered, candidates, True, 1)
        return considered | self.singletons

    def extended(self, latents: Latents, most: int) -> "ExpectationTruncation | None":
        """Return the scheme with one more active cause and, if there are more, one more candidate."""
        candidates, gamma = min(self.candidates + 1, latents.atoms), self.max_active + 1
        if gamma > latents.max_active_of(latents.atoms) or latents.states(candidates, gamma) > most:
            return None
        options = ETOptions(candidates=candidates, gamma=gamma, random=self.random, singletons=self.singletons)
        more = ExpectationTruncation(options, latents)
        more.selection = self.selection
        return more


SCHEME = ExpectationTruncation
