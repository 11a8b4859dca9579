"""Truncated variational EM: states are kept of each point, and replaced where better ones are found (TV Alg. 1)."""

from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from parallel_et.core.latent_states import Latents, Table
from parallel_et.core.model import EnumeratingView
from parallel_et.core.posterior import Posterior, Sparse
from parallel_et.core.schema import MOST, Section
from parallel_et.core.scheme import Context, Scheme
from parallel_et.core.types import Block, PointStates
from parallel_et.kernels import VACANT, search, truncated
from parallel_et.schemes.et import MOST_STATES
from parallel_et.schemes.selection.candidates import SelectingOptions, chosen
from parallel_et.schemes.selection.choose import selection_of

NEIGHBOURS = 8
"""Atoms that are near one, for proposals of the kind ``near``."""
FEW = 20
"""Proposals where a job names none, at least."""


def number(does: str) -> Any:
    """How many states of a kind are proposed."""
    return Field(0, ge=0, le=MOST_STATES, description=does)


class Proposals(Section):
    """How many states of each kind are proposed for a point in an iteration."""

    select: int = number("constructed of preselected causes, as et has them")
    near: int = number("a kept state with one cause exchanged for one whose field is alike")
    flip: int = number("a kept state with one cause less, more or another")
    toggle: int = number("the best kept states with one cause less or more, each cause in turn")
    cross: int = number("the causes of two kept states before and after a cut")
    marginals: int = number("causes drawn one by one, by their posterior means mixed with the prior")
    prior: int = number("drawn from the prior")
    blind: int = number("any number of any causes")


class SearchOptions(SelectingOptions):
    """The keys of [inference] for schemes that keep states and search for better ones."""

    gamma: int | None = Field(
        None, ge=1, le=MOST, description="most causes active in a state; needed where the model itself has no limit"
    )
    candidates: int | None = Field(
        None, ge=1, le=MOST, description="preselected causes for states of the kind select; by default enough for them"
    )
    start: Literal["select", "prior", "blind"] = Field(
        "select", description="kind of the states that are proposed before the first iteration"
    )
    rounds: int = Field(20, ge=1, le=MOST, description="searches for states of points that a trained model is shown")
    propose: Proposals = Field(
        Proposals(),
        description=f"states proposed in an iteration, by kind; by default as many as are kept, {FEW} at least, half "
        "of them by select, the others by flip and cross; where one cause a state is active, by near and flip",
    )

    def mistakes(self, latents: Latents) -> list[tuple[str, str, object]]:
        wrong: list[tuple[str, str, object]] = []
        if self.gamma is None and latents.most is None:
            wrong.append(("gamma", f"a number of at most model.causes = {latents.atoms}", None))
        elif (self.gamma or 1) > latents.atoms:
            wrong.append(("gamma", f"at most model.causes = {latents.atoms}", self.gamma))
        if (self.candidates or 1) > latents.atoms:
            wrong.append(("candidates", f"at most {latents.words}", self.candidates))
        elif self.candidates is not None and latents.states(self.candidates, self.gamma or latents.atoms) > MOST_STATES:
            wrong.append(("candidates", f"at most {MOST_STATES} states of them", self.candidates))
        return wrong


class TVOptions(SearchOptions):
    """The keys of [inference] for tv."""

    scheme: str = Field("tv", description="truncated variational EM: kept states, replaced by better ones")
    states: int = Field(ge=1, le=MOST_STATES, description="states that are kept of a point")


class Search(NamedTuple):
    """The kept states of a block (n, S, g) int32, their log joints and marks (n, S), and what is at hand to search."""

    context: Context
    view: EnumeratingView
    point_states: PointStates
    states: np.ndarray
    logs: np.ndarray
    marks: np.ndarray

    def key(self, kind: str) -> np.uint64:
        """Of the random numbers of a kind."""
        return self.context.random.key(kind)


class TruncatedVariational(Scheme):
    """q_n on the S best states that were found so far; at T = 1 the free energy never falls (TV Prop. 6)."""

    Options: ClassVar[type[SearchOptions]] = TVOptions

    def __init__(self, options: Any, latents: Latents) -> None:
        self.latents, self.start, self.rounds = latents, options.start, options.rounds
        self.most = latents.most_of(options.gamma or latents.atoms)
        self.kept = min(self.wanted(options), latents.states(latents.atoms, self.most))
        self.propose = {kind: number for kind, number in options.propose if number} or self._usual()
        self.candidates = 0
        self.selection = selection_of(options, latents, min(self.most, latents.atoms - 1))
        self._owner = latents.owners.astype(np.int32)
        self._options = options
        self.count = self.kept + max([self.kept, *self.propose.values()])
        kinds = ", ".join(f"{number} by {kind}" for kind, number in self.propose.items())
        self.words = f"{self.kept} states a point, kept; proposed are {kinds}"

    def wanted(self, options: Any) -> int:
        """States to be kept of a point, if there are so many."""
        return options.states

    def _usual(self) -> dict[str, int]:
        """The proposals where a job names none: as many as are kept, and some where that is few."""
        fourth = max(self.kept, FEW) // 4
        if self.most == 1:
            return {"near": 3 * fourth, "flip": fourth}
        return {"select": 2 * fourth, "flip": fourth, "cross": fourth}

    @cached_property
    def table(self) -> Table:
        """The states over the candidates of those that are constructed in an iteration."""
        return self._table(self._options.candidates, self.propose.get("select", 1))

    @cached_property
    def first(self) -> Table:
        """The states over the candidates of those that a point begins with."""
        return self._table(None, self.kept)

    def _table(self, candidates: int | None, wanted: int) -> Table:
        """The states of so many candidates, or of so few that there are as many as wanted."""
        enough = candidates or next(
            c for c in range(1, self.latents.atoms + 1) if c == self.latents.atoms or self._states(c) >= wanted
        )
        return Table.of(self.latents, enough, self.most)

    def _states(self, candidates: int) -> int:
        return self.latents.states(candidates, self.most)

    def initial_point_states(self, points: int) -> PointStates:
        kind = np.int16 if self.latents.atoms <= np.iinfo(np.int16).max else np.int32
        return {"states": np.full((points, self.kept, max(1, self.most)), VACANT, kind)}

    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        context.phase("select")
        view = context.evaluator.observe(block, singles=True)
        assert isinstance(view, EnumeratingView)
        context.phase("states")
        states = point_states["states"].astype(np.int32)
        marks = np.empty(states.shape[:2], np.uint64)
        search.mark(states, marks)
        at = Search(context, view, point_states, states, view.log_joint(states), marks)
        if (states[:, 0, 0] == VACANT).any():
            self._enter(at, self._first(at))
        for kind, number in self.propose.items():
            self._enter(at, getattr(self, f"_{kind}")(at, number))
        evidence, weights = np.empty(len(block)), at.logs
        truncated.weigh(weights, context.beta, evidence)
        posterior = view.over_listed(evidence, states, Sparse.of(weights))
        return posterior, {"states": states.astype(point_states["states"].dtype)}

    def _enter(self, at: Search, proposed: np.ndarray) -> None:
        search.enter(at.states, at.logs, at.marks, proposed, at.view.log_joint(proposed))

    # the kinds of proposals: states (n, number, g)

    def _first(self, at: Search) -> np.ndarray:
        """States to begin with."""
        if self.start == "select":
            return self._constructed(at, self.first, len(self.first))
        return getattr(self, f"_{self.start}")(at, self.kept)

    def _select(self, at: Search, number: int) -> np.ndarray:
        """States over preselected candidates: all, or every time others of them."""
        return self._constructed(at, self.table, number)

    def _constructed(self, at: Search, table: Table, number: int) -> np.ndarray:
        K, count = len(table), max(1, int(table.members.max()) + 1)
        candidates = chosen(self.selection, at.context, at.view, at.point_states, count)
        out, start, stride = self._room(at, min(number, K)), np.zeros(len(at.view), np.int64), 1
        if number < K:
            start = (at.context.random.uniforms("select", at.view.block.first, (len(start), 1))[:, 0] * K).astype(
                np.int64
            )
            stride = next(s for s in range(round(0.618 * K), K + 1) if np.gcd(s, K) == 1)
        search.construct(candidates, table.members, start, stride, self._owner, out)
        return out

    def _blind(self, at: Search, number: int) -> np.ndarray:
        out = self._room(at, number)
        search.blind(at.key("blind"), at.view.block.first, *self._limits, out)
        return out

    def _flip(self, at: Search, number: int) -> np.ndarray:
        out = self._room(at, number)
        search.flip(at.key("flip"), at.view.block.first, at.states, at.logs, *self._limits, out)
        return out

    def _toggle(self, at: Search, number: int) -> np.ndarray:
        out = self._room(at, number)
        search.toggle(at.key("toggle"), at.view.block.first, at.states, at.logs, *self._limits, out)
        return out

    def _near(self, at: Search, number: int) -> np.ndarray:
        out, neighbours = self._room(at, number), at.context.evaluator.nearest_atoms(NEIGHBOURS)
        ordered = self.latents.ordered
        search.near(at.key("near"), at.view.block.first, at.states, at.logs, self._owner, ordered, neighbours, out)
        return out

    def _cross(self, at: Search, number: int) -> np.ndarray:
        out = self._room(at, number)
        search.cross(at.key("cross"), at.view.block.first, at.states, at.logs, *self._limits, out)
        return out

    def _marginals(self, at: Search, number: int) -> np.ndarray:
        out = self._prior(at, number)
        search.marginals(
            at.key("marginals"), at.view.block.first, at.states, at.logs, at.context.beta, *self._limits, out
        )
        return out

    def _prior(self, at: Search, number: int) -> np.ndarray:
        """States drawn from the prior; those with too many causes are none."""
        rng = at.context.random.generator("prior", at.view.block.first)
        drawn = at.view.model.prior.draw(at.context.evaluator.params, rng, len(at.view) * number).reshape(
            len(at.view), number, -1
        )
        out, g = self._room(at, number), min(drawn.shape[2], at.states.shape[2])
        out[:] = -1
        out[:, :, :g] = drawn[:, :, :g]
        many = (drawn[:, :, self.most :] >= 0).any(2)
        out[many] = -1
        out[many, 0] = VACANT
        return out

    def _room(self, at: Search, number: int) -> np.ndarray:
        return np.empty((len(at.view), number, at.states.shape[2]), np.int32)

    @property
    def _limits(self) -> tuple[np.ndarray, int, int, bool]:
        return self._owner, self.latents.least, self.most, self.latents.ordered


SCHEME = TruncatedVariational
