"""Gibbs sampling of the states of a block: chains over candidates, of which each is drawn anew in turn."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from parallel_et.core.latent_states import Latents, in_front
from parallel_et.core.posterior import Draws, Posterior, Sparse, weigh
from parallel_et.core.random import Random
from parallel_et.kernels import VACANT


class Sweeps(NamedTuple):
    """How often all candidates are drawn anew, and by which random numbers.

    Attributes
    ----------
    length : sweeps of a chain
    burn : how many of them are forgotten
    chains : how many there are of each point, beside each other
    random : the numbers of this iteration
    first : index of the first point of the block
    joint : whether the distinct states are weighed by their joint, instead of by how often they were drawn
    """

    length: int
    burn: int
    chains: int
    random: Random
    first: int
    joint: bool = False

    @property
    def draws(self) -> int:
        """States that are drawn of a point: those at the ends of sweeps, but for the forgotten ones."""
        return (self.length - self.burn) * self.chains

    def betas(self, beta: float) -> np.ndarray:
        """1 / T of each sweep: the first half of the forgotten ones cool down to it, by which chains find their way."""
        return beta * np.minimum(1.0, np.arange(1, self.length + 1) / (self.burn // 2 + 1))

    def order(self, candidates: int) -> np.ndarray:
        """In which order the candidates are drawn, the same for all points; (length, candidates) int32."""
        rng = self.random.generator("order of a sweep", 0)
        return np.array([rng.permutation(candidates) for _ in range(self.length)], np.int32)


class Chains(NamedTuple):
    """Where the chains of n points stand.

    Attributes
    ----------
    candidates : (n, C) int32
    active : (n, chains, C) bool
    values : (n, chains, C), of the active ones; None where causes have none
    """

    candidates: np.ndarray
    active: np.ndarray
    values: np.ndarray | None = None

    def states(self) -> np.ndarray:
        """Lists of the active atoms, as states are written down; (n, chains, g)."""
        return in_front(self.candidates[:, None], self.active, -1)

    def listed_values(self) -> np.ndarray:
        """The values of the atoms in these lists."""
        assert self.values is not None
        return in_front(self.values, self.active, 0.0)


class ListsStates(Protocol):
    """A block of points with the joint of any listed states."""

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y_n) of states (n, K, g), (n, K); -inf for vacant places."""

    def over_listed(self, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> Posterior:
        """Return the posterior of states (n, K, g) with weights q."""


@runtime_checkable
class GibbsConditional(Protocol):
    """A block of points whose model has a conditional of its own, such as one that draws the values of causes too."""

    def begin(self, chains: Chains) -> Chains:
        """Return the chains before the first sweep, with values."""

    def redraw(self, chains: Chains, site: int, beta: float, uniforms: np.ndarray) -> Chains:
        """Draw candidate ``site`` of each chain anew given all others, by numbers in [0, 1), (n, chains)."""


@runtime_checkable
class Samples(Protocol):
    """A block of points whose posterior can be sampled."""

    def sample(self, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        """Return the posterior by Gibbs sampling over candidates (n, C) in rising order."""


def redrawn(
    view: ListsStates, latents: Latents, chains: Chains, site: int, beta: float, uniforms: np.ndarray
) -> Chains:
    """Draw one candidate of each chain anew, given all others, by log joints; uniforms (n, chains).

    If at most one of several atoms can be active, all of them are drawn together.
    """
    candidates, active, _ = chains
    mates = with_mates(latents, candidates, site)
    options = [-1, *np.flatnonzero(mates.any(0)).tolist()]
    rest = active & ~mates[:, None]
    least, most = latents.least, latents.most_of(latents.atoms)
    logs = np.full((*uniforms.shape, len(options)), -np.inf)
    for number, option in enumerate(options):
        tried = rest.copy()
        if option >= 0:
            tried[..., option] = True
        size = tried.sum(-1)
        states = Chains(candidates, tried).states()
        found = view.log_joint(states)
        allowed = (size >= least) & (size <= most) & (option < 0 or mates[:, option, None])
        logs[..., number] = np.where(allowed, found, -np.inf)
    rising = np.exp(beta * (logs - logs.max(-1, keepdims=True))).cumsum(-1)
    chosen = (uniforms[..., None] * rising[..., -1:] >= rising[..., :-1]).sum(-1)
    for number, option in enumerate(options):
        if option >= 0:
            rest[..., option] |= chosen == number
    return chains._replace(active=rest)


def with_mates(latents: Latents, candidates: np.ndarray, site: int) -> np.ndarray:
    """Which candidates cannot be active beside that of a site, itself among them; (n, C) bool."""
    if latents.most == 1:
        return np.ones(candidates.shape, bool)
    owner = latents.owners[candidates]
    return owner == owner[:, site, None]


def sample(view: ListsStates, latents: Latents, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
    """Return the posterior by Gibbs chains, each of which begins with one random candidate."""
    own = view if isinstance(view, GibbsConditional) else None
    n, C = candidates.shape
    random, first, shape = sweeps.random, sweeps.first, (n, sweeps.chains)
    begin = (random.uniforms("chains", first, shape) * C).astype(int)
    chains, ends = Chains(candidates, begin[..., None] == np.arange(C)), []
    chains = own.begin(chains) if own else chains
    for number, (order, warm) in enumerate(zip(sweeps.order(C), sweeps.betas(beta), strict=True)):
        uniforms = random.uniforms(f"sweep {number}", first, (n, C * sweeps.chains)).reshape(n, C, -1)
        for site in order.tolist():
            if own:
                chains = own.redraw(chains, site, warm, uniforms[:, site])
            else:
                chains = redrawn(view, latents, chains, site, warm, uniforms[:, site])
        ends.append(chains)
    forgotten = sweeps.burn * sweeps.chains
    weights = np.full((n, len(ends) * sweeps.chains), 1.0 / sweeps.draws)
    weights[:, :forgotten] = 0.0
    visited = Chains(candidates, np.concatenate([end.active for end in ends], 1))
    states, q, _ = distinct(visited, weights)
    evidence, by_joint = weigh(view.log_joint(states), beta)
    q = by_joint if sweeps.joint else q
    if chains.values is None:
        return view.over_listed(evidence, states, Sparse.of(q))
    values = np.concatenate([end.values for end in ends if end.values is not None], 1)
    drawn = Chains(candidates, visited.active[:, forgotten:], values[:, forgotten:])
    return Draws(evidence, drawn.states(), Sparse.of(weights[:, forgotten:]), drawn.listed_values())


def distinct(chains: Chains, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct states of each point, (n, K, g) with vacant places, their weights (n, K), of draws (n, m), and where
    each comes first among these, (n, K); -1 for vacant places.
    """
    n, m = weights.shape
    point = np.broadcast_to(np.arange(n, dtype=">u4")[:, None, None], (n, m, 1)).copy().view(np.uint8)
    rows = np.concatenate([point, np.packbits(chains.active, -1)], -1).reshape(n * m, -1)
    _, index, which = np.unique(
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
    q[owner, place] = np.bincount(which.reshape(-1), weights.reshape(-1), len(index))
    first = np.full(states.shape[:2], -1)
    first[owner, place] = index - owner * m
    return states, q, first
