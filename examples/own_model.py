"""A model of one's own: counts that add up under Poisson noise, as of photons or spikes."""

import numpy as np
from pydantic import Field

from parallel_et.errors import UserError
from parallel_et.models import PI, UNUSED, Bernoulli, Model, ModelOptions, Param, Poisson, Sum, sums_by_atom, with_none


class CountsOptions(ModelOptions):
    """The keys of [model] of its own."""

    dark: float = Field(0.1, gt=0, le=1e6, description="mean count where no cause is active")


class Counts(Model):
    """y_d ~ Poisson(dark + sum_h s_h W_dh); a count is shared among the dark and the active causes by their rates."""

    Options = CountsOptions
    params = {"W": Param("DH", "mean counts that a cause adds", low=0.0), "pi": PI}

    def __init__(self, options, dims):
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Poisson()

    def start(self, name, summary):
        return summary.mean or 1.0, summary.mean / 3

    def check(self, summary):
        if summary.negative:
            raise UserError(f"data: expected counts, found {summary.negative:.1%} negative values")

    def mean(self, params, states):
        return self.options.dark + with_none(params["W"].T)[states].sum(-2)

    def sums(self, stage):
        return {"shares": Sum((self.H, self.D), lambda params, summary: summary.largest), "active": Sum((self.H,))}

    def statistics(self, stage, ready, Y, states, q):
        surprise = q[:, None] * Y / self.mean(ready, states)
        return {
            "shares": sums_by_atom(states, surprise, self.H) * ready["W"].T,
            "active": sums_by_atom(states, q, self.H),
        }

    def maximise(self, stage, params, sums, knobs, summary):
        active, points = sums["active"], float(sums["points"])
        used = active > UNUSED * points
        W = np.where(used, sums["shares"].T / np.where(used, active, 1.0), params["W"])
        return {"W": W, "pi": self.prior.learn(params, active, points, knobs)}


MODEL = Counts
