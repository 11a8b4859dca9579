"""Expectation truncation: candidates by preselection, then all their combinations up to gamma causes (ET Alg. 1)."""

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from parallel_et.core.latent_states import Latents, Table
from parallel_et.core.model import EnumeratingView
from parallel_et.core.posterior import Posterior
from parallel_et.core.schema import MOST, Section
from parallel_et.core.scheme import Context, Scheme, Selection, vacant_point_states
from parallel_et.core.types import Block, PointStates
from parallel_et.schemes.selection.candidates import SelectingOptions, chosen
from parallel_et.schemes.selection.choose import selection_of

MOST_GAMMA = 20
MOST_STATES = 1 << MOST_GAMMA
"""States a point: those of so many causes, in any combination."""


class ETOptions(SelectingOptions):
    """The keys of [inference] for et."""

    scheme: str = Field("et", description="expectation truncation")
    candidates: int = Field(ge=1, le=MOST, description="preselected causes a point, H'")
    gamma: int | None = Field(
        None,
        ge=1,
        le=MOST_GAMMA,
        description="most causes active in a considered state; by default the most that the model has, if that is few",
    )
    random: int = Field(0, ge=0, le=MOST, description="how many of the candidates are drawn at random")
    singletons: bool = Field(False, description="also consider every cause alone, candidate or not")

    def mistakes(self, latents: Latents) -> list[tuple[str, str, object]]:
        wrong: list[tuple[str, str, object]] = []
        if self.candidates > latents.atoms:
            wrong.append(("candidates", f"at most {latents.words}", self.candidates))
        elif self.random >= self.candidates:
            wrong.append(("random", f"less than inference.candidates = {self.candidates}", self.random))
        if self.gamma is None and latents.most is None:
            wrong.append(("gamma", "a value", None))
        elif self.gamma is not None and self.gamma > self.candidates:
            wrong.append(("gamma", f"at most inference.candidates = {self.candidates}", self.gamma))
        elif (count := latents.states(self.candidates, self.most(latents))) > MOST_STATES:
            wrong.append(("gamma", f"at most {MOST_STATES} states a point", count))
        return wrong

    def most(self, latents: Latents) -> int:
        """Active causes that a considered state has at most."""
        return latents.most_of(min(self.candidates, self.gamma or self.candidates))


class ExpectationTruncation(Scheme):
    """q_n on K_n = the states of at most gamma of the H' candidates, optionally with all single causes."""

    Options: ClassVar[type[Section]] = ETOptions

    def __init__(self, options: Any, latents: Latents) -> None:
        self.candidates, self.most, self.singles = self.extent(options, latents)
        self.random = getattr(options, "random", 0)
        self.selection = selection_of(options, latents, self.candidates)
        self.table = Table.of(latents, self.candidates, self.most)
        self.count = len(self.table)
        own = type(self).infer is ExpectationTruncation.infer
        self.pairs = self.candidates * (self.candidates - 1) // 2 if own else 0
        self.row_independent = own and type(self.selection) is Selection and not self.singles
        self.words = f"{self.count} states a point" + " and every cause alone" * self.singles

    def extent(self, options: ETOptions, latents: Latents) -> tuple[int, int, bool]:
        """Candidates, most active causes, and whether single causes outside the candidates count."""
        singles = options.singletons and options.candidates < latents.atoms
        return options.candidates, options.most(latents), singles

    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        context.phase("select")
        view = context.evaluator.observe(block, self.singles)
        assert isinstance(view, EnumeratingView)
        candidates = chosen(self.selection, context, view, point_states, self.candidates, self.random)
        context.phase("states")
        return view.over_table(candidates, self.table, context.beta), point_states

    def single_atoms(self, context: Context, block: Block) -> np.ndarray:
        considered = np.zeros((len(block), context.evaluator.model.latents.atoms), bool)
        view, states = context.evaluator.observe(block, self.singles), vacant_point_states(self, len(block))
        candidates = chosen(self.selection, context, view, states, self.candidates, self.random)
        np.put_along_axis(considered, candidates, True, 1)
        return considered | self.singles

    def extended(self, latents: Latents, most: int) -> "ExpectationTruncation | None":
        """Return the scheme with one more active cause and, if there are more, one more candidate."""
        candidates, gamma = min(self.candidates + 1, latents.atoms), self.most + 1
        if gamma > latents.most_of(latents.atoms) or latents.states(candidates, gamma) > most:
            return None
        options = ETOptions(candidates=candidates, gamma=gamma, random=self.random, singletons=self.singles)
        more = ExpectationTruncation(options, latents)
        more.selection = self.selection
        return more


SCHEME = ExpectationTruncation
