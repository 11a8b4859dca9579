"""How states are distributed before a point is seen: independent causes, or exactly one of them."""

import numpy as np
from scipy.special import bdtr, gammaln

from parallel_et.core.latent_states import in_lists
from parallel_et.core.types import Param, Params, Rule, Settings

EDGE = 1e-9
"""A probability that is learned stays so far from 0 and 1."""
PI = Param(
    "",
    "probability that a cause is active, or where it begins",
    Rule(lambda causes, summary: min(0.25, 2 / causes), "two causes a point, 2 / H, but 0.25 at most"),
    EDGE,
    1 - EDGE,
    each=True,
)


class Bernoulli:
    """Causes that are active independently, with one probability pi () for all or one for each, pi (H,).

    A cause that is active is so in one of several ``ways``, all of the same probability: atom h + w H is cause h in
    its way w.
    """

    def __init__(self, causes: int, ways: int = 1) -> None:
        self.H, self.ways = causes, ways

    def empty(self, params: Params) -> float:
        """log p(s = 0)."""
        return float(np.sum(np.log1p(-params["pi"]))) * (self.H if params["pi"].ndim == 0 else 1)

    def odds(self, params: Params) -> np.ndarray:
        """What an active cause adds to the log prior, () or (H,)."""
        return np.log(params["pi"]) - np.log1p(-params["pi"]) - np.log(self.ways)

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """log p(s), (...)."""
        odds = np.tile(np.broadcast_to(self.odds(params), self.H), self.ways)
        return self.empty(params) + np.append(odds, 0.0)[states].sum(-1)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """States (count, g)."""
        state, cause = np.divmod(successes(np.max(params["pi"]), count * self.H, rng), self.H)
        if params["pi"].ndim:
            some = rng.random(len(cause)) * np.max(params["pi"]) < params["pi"][cause]
            state, cause = state[some], cause[some]
        if self.ways == 1:
            return in_lists(state, cause, count)
        atom = cause + self.H * rng.integers(self.ways, size=len(cause))
        order = np.lexsort([atom, state])
        return in_lists(state[order], atom[order], count)

    def share(self, params: Params, most: int) -> float:
        """p(|s| <= most), the share of the points that are expected to have so few active causes (ET eq. 23)."""
        if params["pi"].ndim == 0:
            return float(bdtr(most, self.H, params["pi"]))
        return float(few(params["pi"], most))

    def share_with(self, params: Params, most: int) -> np.ndarray:
        """p(|s| <= most | s_h = 1), () or (H,)."""
        if params["pi"].ndim == 0:
            return bdtr(most - 1, self.H - 1, params["pi"])
        return few(params["pi"], most - 1, but_one=True)

    def learn(self, params: Params, active: np.ndarray, points: float, settings: Settings) -> np.ndarray:
        """New pi from ``active`` (H,), the sum of <s> over ``points`` points; under a cut with its correction.

        Without a cut pi = <s>. With one, M holds points of at most gamma causes, of which p(s_h = 1 | |s| <= gamma)
        is expected: pi = <s> p(|s| <= gamma) / p(|s| <= gamma | s_h = 1).
        """
        pi = params["pi"]
        mean = active / points if pi.ndim else active.sum() / points / self.H
        if settings.cut > 0:
            expected = self.share_with(params, settings.most)
            if np.any(expected == 0):  # so few active causes are impossible under this pi
                return pi
            mean = mean * self.share(params, settings.most) / expected
        return np.clip(mean, EDGE, 1 - EDGE)


class Ordered(Bernoulli):
    """Causes that are active independently and stand in any order: of |s|! orders each has the same probability."""

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """log p(s), (...)."""
        return super().log(params, states) - gammaln((states >= 0).sum(-1) + 1.0)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """States (count, g)."""
        states = super().draw(params, rng, count)
        place = np.where(states >= 0, rng.random(states.shape), 2.0)
        return np.take_along_axis(states, place.argsort(1), 1)


class Categorical:
    """Exactly one of the causes is active, with the probabilities pi (H,)."""

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """log p(s), (...)."""
        return np.log(params["pi"])[states[..., 0]]

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """States (count, 1)."""
        return rng.choice(len(params["pi"]), (count, 1), p=params["pi"]).astype(np.int32)

    def share(self, params: Params, most: int) -> float:
        """Share of the points that are expected to have at most ``most`` active causes."""
        return 1.0

    def learn(self, params: Params, active: np.ndarray, points: float, settings: Settings) -> np.ndarray:
        """New pi from ``active`` (H,), the sum of <s> over the points."""
        pi = np.maximum(active, EDGE * points)
        return pi / pi.sum()


def successes(p: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """Which of so many independent trials of one probability succeed, in rising order; costs no more than these."""
    found, last = [np.empty(0, np.int64)], -1
    while last < trials - 1:
        steps = rng.geometric(p, int((trials - last) * p * 1.1) + 10)
        found.append(last + np.cumsum(np.minimum(steps, trials)))
        last = int(found[-1][-1])
    every = np.concatenate(found)
    return every[every < trials]


def few(pi: np.ndarray, most: int, but_one: bool = False) -> np.ndarray:
    """Probability that at most ``most`` of independent events of the probabilities pi (H,) happen.

    () or, ``but_one`` of them in turn left out, (H,).
    """
    count = np.zeros((len(pi) if but_one else 1, most + 1))  # probability of 0, ..., most of those seen so far
    count[:, 0] = 1.0
    for h, p in enumerate(pi):
        new = (1 - p) * count
        new[:, 1:] += p * count[:, :-1]
        if but_one:
            new[h] = count[h]
        count = new
    total = count.sum(1)
    return total if but_one else total[0]
