"""Prior distributions p(s) of the states: independent causes, ordered causes, or exactly one active cause."""

import numpy as np
from scipy.special import bdtr, gammaln

from parallel_et.core.latent_states import states_of_pairs
from parallel_et.core.types import Param, Params, Rule, Settings

MIN_PROBABILITY = 1e-9
"""Smallest distance of a learned probability from 0 and 1."""
PI = Param(
    "",
    "probability that a cause is active, or its initial value",
    Rule(lambda causes, summary: min(0.25, 2 / causes), "two causes per point, 2 / H, but at most 0.25"),
    MIN_PROBABILITY,
    1 - MIN_PROBABILITY,
    each=True,
)


class Bernoulli:
    """Causes that are active independently, with one probability pi () for all or one for each, pi (H,).

    An active cause takes one of several ``variants`` of equal probability. Atom h + v H is variant v of cause h.
    """

    def __init__(self, causes: int, variants: int = 1) -> None:
        self.H, self.variants = causes, variants

    def empty(self, params: Params) -> float:
        """Return log p(s = 0)."""
        return float(np.sum(np.log1p(-params["pi"]))) * (self.H if params["pi"].ndim == 0 else 1)

    def odds(self, params: Params) -> np.ndarray:
        """Return the term of an active cause in the log prior, () or (H,)."""
        return np.log(params["pi"]) - np.log1p(-params["pi"]) - np.log(self.variants)

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return log p(s), (...)."""
        odds = np.tile(np.broadcast_to(self.odds(params), self.H), self.variants)
        return self.empty(params) + np.append(odds, 0.0)[states].sum(-1)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw states (count, g)."""
        state, cause = np.divmod(draw_successes(np.max(params["pi"]), count * self.H, rng), self.H)
        if params["pi"].ndim:
            some = rng.random(len(cause)) * np.max(params["pi"]) < params["pi"][cause]
            state, cause = state[some], cause[some]
        if self.variants == 1:
            return states_of_pairs(state, cause, count)
        atom = cause + self.H * rng.integers(self.variants, size=len(cause))
        order = np.lexsort([atom, state])
        return states_of_pairs(state[order], atom[order], count)

    def fraction_up_to(self, params: Params, max_active: int) -> float:
        """Return p(|s| <= max_active), the expected fraction of points with at most this many causes (ET eq. 23)."""
        if params["pi"].ndim == 0:
            return float(bdtr(max_active, self.H, params["pi"]))
        return float(probability_of_at_most(params["pi"], max_active))

    def fraction_up_to_given_active(self, params: Params, max_active: int) -> np.ndarray:
        """Return p(|s| <= max_active | s_h = 1), () or (H,)."""
        if params["pi"].ndim == 0:
            return bdtr(max_active - 1, self.H - 1, params["pi"])
        return probability_of_at_most(params["pi"], max_active - 1, leave_one_out=True)

    def learn(self, params: Params, active: np.ndarray, points: float, settings: Settings) -> np.ndarray:
        """Return the new pi from ``active`` (H,), the sum of <s> over ``points`` points.

        Without a cut, pi is the mean of <s>. A cut leaves points with at most gamma causes.
        Their expectation is p(s_h = 1 | |s| <= gamma), so pi = <s> p(|s| <= gamma) / p(|s| <= gamma | s_h = 1).
        """
        pi = params["pi"]
        mean = active / points if pi.ndim else active.sum() / points / self.H
        if settings.cut > 0:
            expected = self.fraction_up_to_given_active(params, settings.max_active)
            if np.any(expected == 0):  # this pi excludes states with at most gamma causes
                return pi
            mean = mean * self.fraction_up_to(params, settings.max_active) / expected
        return np.clip(mean, MIN_PROBABILITY, 1 - MIN_PROBABILITY)


class Ordered(Bernoulli):
    """Causes that are active independently, in a random order: all |s|! orders have the same probability."""

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return log p(s), (...)."""
        return super().log(params, states) - gammaln((states >= 0).sum(-1) + 1.0)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw states (count, g)."""
        states = super().draw(params, rng, count)
        place = np.where(states >= 0, rng.random(states.shape), 2.0)
        return np.take_along_axis(states, place.argsort(1), 1)


class Categorical:
    """Exactly one of the causes is active, with the probabilities pi (H,)."""

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return log p(s), (...)."""
        return np.log(params["pi"])[states[..., 0]]

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw states (count, 1)."""
        return rng.choice(len(params["pi"]), (count, 1), p=params["pi"]).astype(np.int32)

    def fraction_up_to(self, params: Params, max_active: int) -> float:
        """Return the expected fraction of points with at most ``max_active`` active causes."""
        return 1.0

    def learn(self, params: Params, active: np.ndarray, points: float, settings: Settings) -> np.ndarray:
        """Return the new pi from ``active`` (H,), the sum of <s> over the points."""
        pi = np.maximum(active, MIN_PROBABILITY * points)
        return pi / pi.sum()


def draw_successes(p: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the indices of successes among independent trials of probability p, in O(successes) operations."""
    found, last = [np.empty(0, np.int64)], -1
    while last < trials - 1:
        steps = rng.geometric(p, int((trials - last) * p * 1.1) + 10)
        found.append(last + np.cumsum(np.minimum(steps, trials)))
        last = int(found[-1][-1])
    every = np.concatenate(found)
    return every[every < trials]


def probability_of_at_most(pi: np.ndarray, max_active: int, leave_one_out: bool = False) -> np.ndarray:
    """Return the probability that at most ``max_active`` of independent events happen, ().

    The events have the probabilities pi (H,). ``leave_one_out`` returns the probability without each event, (H,).
    """
    # probabilities of 0, ..., max_active events among the first h
    count = np.zeros((len(pi) if leave_one_out else 1, max_active + 1))
    count[:, 0] = 1.0
    for h, p in enumerate(pi):
        new = (1 - p) * count
        new[:, 1:] += p * count[:, :-1]
        if leave_one_out:
            new[h] = count[h]
        count = new
    total = count.sum(1)
    return total if leave_one_out else total[0]
