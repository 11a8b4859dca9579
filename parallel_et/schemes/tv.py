"""Truncated variational EM: states of each point are stored, and replaced with better states (TV Alg. 1)."""

from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from parallel_et.core.latent_states import Latents, Table
from parallel_et.core.model import EnumeratingView
from parallel_et.core.posterior import Posterior, Sparse
from parallel_et.core.schema import MAX_COUNT, Section
from parallel_et.core.scheme import Context, Scheme
from parallel_et.core.types import Block, PointStates
from parallel_et.kernels import VACANT, search, truncated
from parallel_et.schemes.et import MAX_STATES
from parallel_et.schemes.selection.candidates import SelectingOptions, select_candidates
from parallel_et.schemes.selection.choose import selection_of

NEIGHBOURS = 8
"""Number of nearest atoms of each atom, for proposals of the kind ``near``."""
MIN_PROPOSALS = 20
"""Smallest number of proposals by default."""


def number_field(description: str) -> Any:
    """Return the declaration of a key with the number of proposed states of a kind."""
    return Field(0, ge=0, le=MAX_STATES, description=description)


class Proposals(Section):
    """Number of states of each kind that are proposed for a point in an iteration."""

    select: int = number_field("combinations of preselected causes, as in et")
    near: int = number_field("a stored state in which a cause with a similar field replaces one cause")
    flip: int = number_field("a stored state with one cause removed, added or replaced")
    toggle: int = number_field("the best stored states with one cause removed or added, each cause in turn")
    cross: int = number_field("the causes of two stored states before and after a random index")
    marginals: int = number_field("causes drawn independently, by their posterior means mixed with the prior")
    prior: int = number_field("drawn from the prior")
    blind: int = number_field("random causes, a random number of them")


class SearchOptions(SelectingOptions):
    """The keys of [inference] for schemes that store states and search for better states."""

    gamma: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="maximum number of active causes in a state; required unless the model has a limit",
    )
    candidates: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="preselected causes for proposals of the kind select; by default as few as possible",
    )
    start: Literal["select", "prior", "blind"] = Field("select", description="kind of the initial states")
    rounds: int = Field(20, ge=1, le=MAX_COUNT, description="number of searches for the states of new points")
    propose: Proposals = Field(
        Proposals(),
        description="number of proposed states per iteration, by kind; by default the number of stored states, at "
        f"least {MIN_PROPOSALS}: half select, a quarter flip, a quarter cross; with one active cause near and flip",
    )

    def inconsistencies(self, latents: Latents) -> list[tuple[str, str, object]]:
        wrong: list[tuple[str, str, object]] = []
        if self.gamma is None and latents.max_active is None:
            wrong.append(("gamma", f"a number of at most model.causes = {latents.atoms}", None))
        elif (self.gamma or 1) > latents.atoms:
            wrong.append(("gamma", f"at most model.causes = {latents.atoms}", self.gamma))
        if (self.candidates or 1) > latents.atoms:
            wrong.append(("candidates", f"at most {latents.description}", self.candidates))
        elif self.candidates is not None and latents.states(self.candidates, self.gamma or latents.atoms) > MAX_STATES:
            wrong.append(("candidates", f"at most {MAX_STATES} states of them", self.candidates))
        return wrong


class TVOptions(SearchOptions):
    """The keys of [inference] for tv."""

    scheme: str = Field("tv", description="truncated variational EM: stored states, replaced by better ones")
    states: int = Field(ge=1, le=MAX_STATES, description="number of stored states per point")


class Pool(NamedTuple):
    """The stored states of a block, which proposals of larger joint replace.

    Attributes
    ----------
    context, view, point_states : arguments of the E-step
    states : (n, S, g) int32, stored states
    logs : (n, S) their log joints
    marks : (n, S) uint64, their hash values
    """

    context: Context
    view: EnumeratingView
    point_states: PointStates
    states: np.ndarray
    logs: np.ndarray
    marks: np.ndarray

    def key(self, kind: str) -> np.uint64:
        """Return the key of the random numbers of a kind of proposals."""
        return self.context.random.key(kind)


class TruncatedVariational(Scheme):
    """Inference with K_n = the S best states found so far. At T = 1 the free energy never falls (TV Prop. 6)."""

    Options: ClassVar[type[SearchOptions]] = TVOptions

    def __init__(self, options: Any, latents: Latents) -> None:
        self.latents, self.start, self.rounds = latents, options.start, options.rounds
        self.max_active = latents.max_active_of(options.gamma or latents.atoms)
        self.pool_size = min(self.wanted_pool_size(options), latents.states(latents.atoms, self.max_active))
        self.propose = {kind: number for kind, number in options.propose if number} or self._default_proposals()
        self.candidates = 0
        self.selection = selection_of(options, latents, min(self.max_active, latents.atoms - 1))
        self._owner = latents.owners.astype(np.int32)
        self._options = options
        self.count = self.pool_size + max([self.pool_size, *self.propose.values()])
        kinds = ", ".join(f"{number} by {kind}" for kind, number in self.propose.items())
        self.description = f"{self.pool_size} stored states per point; proposals: {kinds}"

    def wanted_pool_size(self, options: Any) -> int:
        """Return the number of stored states per point, if the model has this many."""
        return options.states

    def _default_proposals(self) -> dict[str, int]:
        """Return the default numbers of proposals by kind."""
        fourth = max(self.pool_size, MIN_PROPOSALS) // 4
        if self.max_active == 1:
            return {"near": 3 * fourth, "flip": fourth}
        return {"select": 2 * fourth, "flip": fourth, "cross": fourth}

    @cached_property
    def select_table(self) -> Table:
        """The states over the candidates for proposals of the kind ``select``."""
        return self._table(self._options.candidates, self.propose.get("select", 1))

    @cached_property
    def initial_table(self) -> Table:
        """The states over the candidates for the initial states."""
        return self._table(None, self.pool_size)

    def _table(self, candidates: int | None, wanted: int) -> Table:
        """Return the states of this many candidates, or of the fewest candidates with the wanted number of states."""
        enough = candidates or next(
            c for c in range(1, self.latents.atoms + 1) if c == self.latents.atoms or self._states(c) >= wanted
        )
        return Table.of(self.latents, enough, self.max_active)

    def _states(self, candidates: int) -> int:
        return self.latents.states(candidates, self.max_active)

    def initial_point_states(self, points: int) -> PointStates:
        kind = np.int16 if self.latents.atoms <= np.iinfo(np.int16).max else np.int32
        return {"states": np.full((points, self.pool_size, max(1, self.max_active)), VACANT, kind)}

    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        context.phase("select")
        view = context.evaluator.observe(block, singletons=True)
        assert isinstance(view, EnumeratingView)
        context.phase("states")
        states = point_states["states"].astype(np.int32)
        marks = np.empty(states.shape[:2], np.uint64)
        search.hash_states(states, marks)
        pool = Pool(context, view, point_states, states, view.log_joint(states), marks)
        if (states[:, 0, 0] == VACANT).any():
            self._insert(pool, self._initial(pool))
        for kind, number in self.propose.items():
            self._insert(pool, getattr(self, f"_{kind}")(pool, number))
        evidence, weights = np.empty(len(block)), pool.logs
        truncated.weigh(weights, context.beta, evidence)
        posterior = view.over_listed(evidence, states, Sparse.of(weights))
        return posterior, {"states": states.astype(point_states["states"].dtype)}

    def _insert(self, pool: Pool, proposed: np.ndarray) -> None:
        search.insert_better(pool.states, pool.logs, pool.marks, proposed, pool.view.log_joint(proposed))

    # kinds of proposals: states (n, number, g)

    def _initial(self, pool: Pool) -> np.ndarray:
        """Return initial states."""
        if self.start == "select":
            return self._combine_candidates(pool, self.initial_table, len(self.initial_table))
        return getattr(self, f"_{self.start}")(pool, self.pool_size)

    def _select(self, pool: Pool, number: int) -> np.ndarray:
        """Return states over preselected candidates: all, or in each iteration a different subset."""
        return self._combine_candidates(pool, self.select_table, number)

    def _combine_candidates(self, pool: Pool, table: Table, number: int) -> np.ndarray:
        K, count = len(table), max(1, int(table.members.max()) + 1)
        candidates = select_candidates(self.selection, pool.context, pool.view, pool.point_states, count)
        out, start, stride = self._empty(pool, min(number, K)), np.zeros(len(pool.view), np.int64), 1
        if number < K:
            start = (pool.context.random.uniforms("select", pool.view.block.first, (len(start), 1))[:, 0] * K).astype(
                np.int64
            )
            stride = next(s for s in range(round(0.618 * K), K + 1) if np.gcd(s, K) == 1)
        search.propose_from_table(candidates, table.members, start, stride, self._owner, out)
        return out

    def _blind(self, pool: Pool, number: int) -> np.ndarray:
        out = self._empty(pool, number)
        search.propose_blind(pool.key("blind"), pool.view.block.first, *self._state_limits, out)
        return out

    def _flip(self, pool: Pool, number: int) -> np.ndarray:
        out = self._empty(pool, number)
        search.propose_flip(pool.key("flip"), pool.view.block.first, pool.states, pool.logs, *self._state_limits, out)
        return out

    def _toggle(self, pool: Pool, number: int) -> np.ndarray:
        out = self._empty(pool, number)
        search.propose_toggle(
            pool.key("toggle"), pool.view.block.first, pool.states, pool.logs, *self._state_limits, out
        )
        return out

    def _near(self, pool: Pool, number: int) -> np.ndarray:
        out, neighbours = self._empty(pool, number), pool.context.evaluator.nearest_atoms(NEIGHBOURS)
        ordered = self.latents.ordered
        search.propose_near(
            pool.key("near"),
            pool.view.block.first,
            pool.states,
            pool.logs,
            self._owner,
            ordered,
            neighbours,
            out,
        )
        return out

    def _cross(self, pool: Pool, number: int) -> np.ndarray:
        out = self._empty(pool, number)
        search.propose_cross(pool.key("cross"), pool.view.block.first, pool.states, pool.logs, *self._state_limits, out)
        return out

    def _marginals(self, pool: Pool, number: int) -> np.ndarray:
        out = self._prior(pool, number)
        search.propose_marginals(
            pool.key("marginals"),
            pool.view.block.first,
            pool.states,
            pool.logs,
            pool.context.beta,
            *self._state_limits,
            out,
        )
        return out

    def _prior(self, pool: Pool, number: int) -> np.ndarray:
        """Return states drawn from the prior. States with too many causes are vacant."""
        rng = pool.context.random.generator("prior", pool.view.block.first)
        drawn = pool.view.model.prior.draw(pool.context.evaluator.params, rng, len(pool.view) * number).reshape(
            len(pool.view), number, -1
        )
        out, g = self._empty(pool, number), min(drawn.shape[2], pool.states.shape[2])
        out[:] = -1
        out[:, :, :g] = drawn[:, :, :g]
        many = (drawn[:, :, self.max_active :] >= 0).any(2)
        out[many] = -1
        out[many, 0] = VACANT
        return out

    def _empty(self, pool: Pool, number: int) -> np.ndarray:
        return np.empty((len(pool.view), number, pool.states.shape[2]), np.int32)

    @property
    def _state_limits(self) -> tuple[np.ndarray, int, int, bool]:
        return self._owner, self.latents.min_active, self.max_active, self.latents.ordered


SCHEME = TruncatedVariational
