"""Gibbs sampling of the states of a block: chains that resample one candidate after another."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from parallel_et.core.latent_states import Latents, pack_active
from parallel_et.core.posterior import Draws, Posterior, Sparse, weigh
from parallel_et.core.random import Random
from parallel_et.kernels import VACANT


class Sweeps(NamedTuple):
    """The settings of Gibbs sampling. A sweep resamples each candidate once.

    Attributes
    ----------
    length : number of sweeps per chain
    burn : number of sweeps in the burn-in, which are discarded
    chains : number of parallel chains per point
    random : random numbers of this iteration
    first : index of the first point of the block
    joint : whether distinct states are weighted by their joint, instead of by their number of draws
    """

    length: int
    burn: int
    chains: int
    random: Random
    first: int
    joint: bool = False

    @property
    def draws(self) -> int:
        """Number of draws per point: the states at the ends of all sweeps after the burn-in."""
        return (self.length - self.burn) * self.chains

    def betas(self, beta: float) -> np.ndarray:
        """Return 1 / T of each sweep. T falls in the first half of the burn-in, so that chains leave local modes."""
        return beta * np.minimum(1.0, np.arange(1, self.length + 1) / (self.burn // 2 + 1))

    def order(self, candidates: int) -> np.ndarray:
        """Return the order of the candidates in each sweep, the same for all points; (length, candidates) int32."""
        rng = self.random.generator("order of a sweep", 0)
        return np.array([rng.permutation(candidates) for _ in range(self.length)], np.int32)


class Chains(NamedTuple):
    """The current states of the chains of n points.

    Attributes
    ----------
    candidates : (n, C) int32
    active : (n, chains, C) bool
    values : (n, chains, C) values of the active candidates; None if causes have no values
    """

    candidates: np.ndarray
    active: np.ndarray
    values: np.ndarray | None = None

    def states(self) -> np.ndarray:
        """Return the states as lists of active atoms, (n, chains, g)."""
        return pack_active(self.candidates[:, None], self.active, -1)

    def listed_values(self) -> np.ndarray:
        """Return the values of the atoms in these lists, (n, chains, g)."""
        assert self.values is not None
        return pack_active(self.values, self.active, 0.0)


class ListsStates(Protocol):
    """A view with the joint of any listed states."""

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y_n) of states (n, K, g), (n, K); -inf for vacant states."""

    def over_listed(self, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> Posterior:
        """Return the posterior of states (n, K, g) with weights q."""


@runtime_checkable
class GibbsConditional(Protocol):
    """A view with its own conditional distribution, for example one that also draws the values of causes."""

    def initial_chains(self, chains: Chains) -> Chains:
        """Return the chains before the first sweep, with values."""

    def redraw(self, chains: Chains, site: int, beta: float, uniforms: np.ndarray) -> Chains:
        """Resample candidate ``site`` of each chain given all others, by uniform random numbers (n, chains)."""


@runtime_checkable
class Samples(Protocol):
    """A view whose posterior can be sampled."""

    def sample(self, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        """Return the posterior by Gibbs sampling over candidates (n, C) in rising order."""


def redraw_site(
    view: ListsStates, latents: Latents, chains: Chains, site: int, beta: float, uniforms: np.ndarray
) -> Chains:
    """Resample one candidate of each chain given all others, by log joints; uniforms (n, chains).

    If at most one of several atoms can be active, these atoms are resampled together.
    """
    candidates, active, _ = chains
    exclusive = exclusive_with(latents, candidates, site)
    options = [-1, *np.flatnonzero(exclusive.any(0)).tolist()]
    rest = active & ~exclusive[:, None]
    max_active = latents.max_active_of(latents.atoms)
    logs = np.full((*uniforms.shape, len(options)), -np.inf)
    for number, option in enumerate(options):
        tried = rest.copy()
        if option >= 0:
            tried[..., option] = True
        size = tried.sum(-1)
        states = Chains(candidates, tried).states()
        found = view.log_joint(states)
        allowed = (size >= latents.min_active) & (size <= max_active) & (option < 0 or exclusive[:, option, None])
        logs[..., number] = np.where(allowed, found, -np.inf)
    rising = np.exp(beta * (logs - logs.max(-1, keepdims=True))).cumsum(-1)
    chosen = (uniforms[..., None] * rising[..., -1:] >= rising[..., :-1]).sum(-1)
    for number, option in enumerate(options):
        if option >= 0:
            rest[..., option] |= chosen == number
    return chains._replace(active=rest)


def exclusive_with(latents: Latents, candidates: np.ndarray, site: int) -> np.ndarray:
    """Return a mask of the candidates that exclude that of a site, including itself; (n, C) bool."""
    if latents.max_active == 1:
        return np.ones(candidates.shape, bool)
    owner = latents.owners[candidates]
    return owner == owner[:, site, None]


def sample(view: ListsStates, latents: Latents, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
    """Return the posterior by Gibbs sampling; each chain begins with one random active candidate."""
    conditional = view if isinstance(view, GibbsConditional) else None
    n, C = candidates.shape
    random, first, shape = sweeps.random, sweeps.first, (n, sweeps.chains)
    initial = (random.uniforms("chains", first, shape) * C).astype(int)
    chains, ends = Chains(candidates, initial[..., None] == np.arange(C)), []
    chains = conditional.initial_chains(chains) if conditional else chains
    for number, (order, sweep_beta) in enumerate(zip(sweeps.order(C), sweeps.betas(beta), strict=True)):
        uniforms = random.uniforms(f"sweep {number}", first, (n, C * sweeps.chains)).reshape(n, C, -1)
        for site in order.tolist():
            if conditional:
                chains = conditional.redraw(chains, site, sweep_beta, uniforms[:, site])
            else:
                chains = redraw_site(view, latents, chains, site, sweep_beta, uniforms[:, site])
        ends.append(chains)
    discarded = sweeps.burn * sweeps.chains
    weights = np.full((n, len(ends) * sweeps.chains), 1.0 / sweeps.draws)
    weights[:, :discarded] = 0.0
    visited = Chains(candidates, np.concatenate([end.active for end in ends], 1))
    states, q, _ = distinct_states(visited, weights)
    evidence, by_joint = weigh(view.log_joint(states), beta)
    q = by_joint if sweeps.joint else q
    if chains.values is None:
        return view.over_listed(evidence, states, Sparse.of(q))
    values = np.concatenate([end.values for end in ends if end.values is not None], 1)
    drawn = Chains(candidates, visited.active[:, discarded:], values[:, discarded:])
    return Draws(evidence, drawn.states(), Sparse.of(weights[:, discarded:]), drawn.listed_values())


def distinct_states(chains: Chains, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge equal states of each point.

    Parameters
    ----------
    chains : m drawn states of each point
    weights : (n, m) weights of the draws

    Returns
    -------
    states : (n, K, g) distinct states, padded with vacant states
    q : (n, K) their weights
    first : (n, K) index of the first draw of each; -1 for vacant states
    """
    n, m = weights.shape
    point = np.broadcast_to(np.arange(n, dtype=">u4")[:, None, None], (n, m, 1)).copy().view(np.uint8)
    rows = np.concatenate([point, np.packbits(chains.active, -1)], -1).reshape(n * m, -1)
    _, index, inverse = np.unique(
        np.ascontiguousarray(rows).view(f"V{rows.shape[1]}"), return_index=True, return_inverse=True
    )
    owner = index // m
    start = np.searchsorted(owner, np.arange(n))
    place = np.arange(len(index)) - start[owner]
    every = chains.states()
    states = np.full((n, int(place.max(initial=0)) + 1, every.shape[-1]), -1, np.int32)
    states[:, :, 0] = VACANT
    states[owner, place] = every.reshape(n * m, -1)[index]
    q = np.zeros(states.shape[:2])
    q[owner, place] = np.bincount(inverse.reshape(-1), weights.reshape(-1), len(index))
    first = np.full(states.shape[:2], -1)
    first[owner, place] = index - owner * m
    return states, q, first
