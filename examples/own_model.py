"""A model of one's own: counts that add up under Poisson noise, as of photons or spikes.

The file defines the model, checks an iteration of it against sums over all states, and recovers the fields of data
drawn from it: ``python own_model.py``, or ``mpirun -n 4 python -m mpi4py own_model.py``.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy.special import gammaln, logsumexp
from scipy.stats import poisson

from parallel_et import fit
from parallel_et.errors import UserError
from parallel_et.kernels.truncated import significant
from parallel_et.models import register
from parallel_et.models.base import UNUSED, GaussModel, ModelOptions, Params, best
from parallel_et.posterior.states import Posterior, Sparse


class CountsOptions(ModelOptions):
    """The keys of [model] for counts; sigma has no meaning here."""

    learn: list[Literal["W", "pi"]] = Field(["W"], description="the parameters to learn")
    dark: float = Field(0.1, gt=0, description="mean count where no cause is active")


class Ready(NamedTuple):
    """Of an iteration: the fields (H, D), the log prior of the empty state, and what an active cause adds to it."""

    WT: np.ndarray
    empty: float
    odds: float


class Seen(NamedTuple):
    """Of a block: the counts (n, D), the part of log p that no state changes (n,), and whether to add singletons."""

    Y: np.ndarray
    base: np.ndarray
    singletons: bool


class Counts(GaussModel):  # for its Bernoulli prior and how that is learned
    """y_d ~ Poisson(dark + sum_h s_h W_dh); candidates are the causes that explain the point best alone."""

    Options = CountsOptions
    nonnegative = True

    # how it begins

    def initial(self, rng, summary, given):
        if summary.negative:
            raise UserError(f"data: expected counts, found {summary.negative:.1%} negative values")
        return super().initial(rng, summary, given)

    def initial_fields(self, summary):
        return summary.mean or 1.0, summary.mean / 3

    def nanoseconds(self, states):
        return 20.0 * self.D * states

    # the E-step

    def prepare(self, params, knobs):
        pi = float(params.pi)
        return Ready(np.ascontiguousarray(params.W.T), self.H * np.log1p(-pi), np.log(pi) - np.log1p(-pi))

    def observe(self, ready, Y, singletons):
        Y = Y[:, : self.D]  # without the padding
        return Seen(Y, ready.empty - gammaln(Y + 1).sum(1), singletons)

    def select(self, ready, seen, count):
        return best(self.log_singletons(ready, seen), count)

    def log_singletons(self, ready, seen):
        rates = self.options.dark + ready.WT
        return seen.Y @ np.log(rates).T - rates.sum(1) + ready.odds + seen.base[:, None]

    def posterior(self, ready, seen, candidates, states, beta):
        rates = self.rates(ready, candidates, states)
        logs = np.einsum("nd,nkd->nk", seen.Y, np.log(rates)) - rates.sum(2)
        logs += ready.odds * states.size + seen.base[:, None]
        if seen.singletons:  # those of candidates are in the table already
            alone = self.log_singletons(ready, seen)
            np.put_along_axis(alone, candidates, -np.inf, 1)
            logs = np.hstack([logs, alone])
        evidence = logsumexp(beta * logs, axis=1)
        q = np.exp(beta * logs - evidence[:, None])
        inside, outside = (Sparse(*significant(np.ascontiguousarray(part))) for part in np.split(q, [len(states)], 1))
        return Posterior(evidence, candidates, outside, weights=inside)

    def rates(self, ready, candidates, states):
        """Mean counts of all states of all points, (n, K, D)."""
        return self.options.dark + table(states, candidates.shape[1]) @ ready.WT[candidates]

    # the M-step: a count is shared among the active causes and the dark in proportion to their rates

    def statistics_like(self, stage):
        return {"points": (), "shares": (self.H, self.D), "active": (self.H,)}

    def bounds(self, stage, params, summary):
        return {"points": 1.0, "shares": summary.largest, "active": 1.0}

    def statistics(self, stage, ready, Y, posterior, used, states, total):
        Y, candidates, on = Y[used, : self.D], posterior.candidates[used], table(states, posterior.candidates.shape[1])
        q, alone = posterior.weights.dense(len(states))[used], posterior.singletons.dense(self.H)[used]
        surprise = Y[:, None] / self.rates(ready, candidates, states)
        shares = (alone.T @ Y) / (self.options.dark + ready.WT)
        np.add.at(shares, candidates, on.T @ (q[:, :, None] * surprise))
        total.add("points", used.sum())
        total.add("shares", shares * ready.WT)
        total.add("active", self.means(posterior, states)[used].sum(0))

    def maximise(self, stage, params, total, knobs, gamma, summary):
        points, active, W = float(total["points"]), total["active"], params.W
        if "W" in self.options.learn:
            W = np.where(active > UNUSED * points, total["shares"].T / np.maximum(active, UNUSED * points), W)
        return self.learn_pi(Params(W, params.sigma, params.pi), float(active.sum()), points, knobs, gamma)

    def usage(self, total):
        return total["active"]

    # what the infer and report commands ask for, and data

    def means(self, posterior, states):
        means = posterior.singletons.dense(self.H)
        q = posterior.weights.dense(len(states))
        np.put_along_axis(means, posterior.candidates, q @ table(states, posterior.candidates.shape[1]), 1)
        return means

    def reconstruction(self, ready, posterior, states):
        return self.options.dark + self.means(posterior, states) @ ready.WT

    def best_states(self, ready, Y, posterior, states):
        (chosen, weight), (alone, single) = posterior.weights.heaviest(), posterior.singletons.heaviest()
        return states.causes(posterior.candidates, chosen, np.where(single > weight, alone, -1))

    def mean(self, params, s):
        return self.options.dark + s @ params.W.T

    def generate(self, params, rng, count):
        s = (rng.random((count, self.H)) < params.pi).astype(np.int8)
        return rng.poisson(self.mean(params, s)).astype(float), s


def table(states, candidates):
    """The states as rows of zeros and ones over the candidates, (K, H')."""
    on = np.zeros((len(states), candidates + 1))
    np.put_along_axis(on, states.members, 1.0, 1)  # the padding, -1, goes to the last column
    return on[:, :candidates]


register("counts", Counts)


def brute_force(W, pi, dark, Y):
    """One EM iteration, the long way over all 2^H states: new W and pi, and the mean log evidence."""
    every = [np.array(s) for s in product([0, 1], repeat=W.shape[1])]
    shares, active, evidence = np.zeros(W.shape), np.zeros(W.shape[1]), 0.0
    for y in Y:
        logs = [poisson.logpmf(y, dark + W @ s).sum() + np.log(np.where(s, pi, 1 - pi)).sum() for s in every]
        evidence += logsumexp(logs)
        for s, q in zip(every, np.exp(logs - logsumexp(logs)), strict=True):
            shares += q * (y / (dark + W @ s))[:, None] * W * s
            active += q * s
    return shares / active, active.mean() / len(Y), evidence / len(Y)


def check():
    """The second iteration of a run in which no state is left out equals brute force, from where the first ended."""
    Y = np.random.default_rng(1).poisson(4.0, (30, 6)).astype(float)
    result = fit(
        {
            "model": {"name": "counts", "causes": 4, "pi": 0.3, "learn": ["W", "pi"], "dark": 0.5},
            "inference": {"scheme": "exact"},
            "anneal": {"iterations": 2},
            "run": {"snapshots": 1},
        },
        Y,
    )
    if result.history:  # only the root has it
        W, pi, evidence = brute_force(result.snapshots["W"][0], result.history["pi"][0], 0.5, Y)
        np.testing.assert_allclose(result.W, W, rtol=1e-9)
        np.testing.assert_allclose(result.params["pi"], pi, rtol=1e-9)
        np.testing.assert_allclose(result.history["free_energy"][1], evidence, rtol=1e-9)
        print("an iteration equals brute force")


def recover(points, iterations, output):
    """Draw ten bars of 8 counts a pixel on a grid of 5 x 5, and learn them."""
    bars = np.zeros((10, 5, 5))
    for i in range(5):
        bars[i, i], bars[5 + i, :, i] = 8.0, 8.0
    options = CountsOptions(name="counts", causes=10, pi=0.2)
    truth = Params(bars.reshape(10, 25).T, np.array(1.0), np.array(options.pi))
    Y, _ = Counts(options, 25).generate(truth, np.random.default_rng(1), points)
    result = fit(
        {
            "model": {"name": "counts", "causes": 10, "pi": 0.2},
            "inference": {"candidates": 6, "gamma": 3},
            "anneal": {"iterations": iterations, "temperature": [[0.1, 12.0], [0.8, 1.0]], "noise": {"W": 0.05}},
        },
        Y,
        output=output,
    )
    if result.history:
        print(result.W.T.reshape(10, 5, 5).round().astype(int))
        far = np.abs(result.W[:, :, None] - truth.W[:, None]).mean(0).min(0)
        print(f"{(far < 1).sum()} of 10 bars found, mean error {far.mean():.2f}")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--output", help="run directory to write")
    args = parser.parse_args()
    check()
    recover(args.points, args.iterations, args.output)
