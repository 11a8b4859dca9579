"""A model of one's own: counts that add up under Poisson noise, as of photons or spikes."""

from pydantic import Field

from parallel_et.models import PI, UNUSED, Bernoulli, Model, ModelOptions, Param, Poisson, Statistic, largest
from parallel_et.models.components.fields import divided, sums_by_atom, with_none


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

    def initial_value(self, name, summary):
        return summary.mean or 1.0, summary.mean / 3

    def mean(self, params, states):
        return self.options.dark + with_none(params["W"].T)[states].sum(-2)

    def statistics(self, stage):
        return {"shares": Statistic((self.H, self.D), largest), "active": Statistic((self.H,))}

    def accumulate(self, stage, params, Y, states, q):
        shares = sums_by_atom(states, q[:, None] * Y / self.mean(params, states), self.H)
        return {"shares": shares * params["W"].T, "active": sums_by_atom(states, q, self.H)}

    def maximise(self, stage, params, sums, settings, summary):
        active, points = sums["active"], float(sums["points"])
        W = divided(sums["shares"].T, active, UNUSED * points, params["W"])
        return {"W": W, "pi": self.prior.learn(params, active, points, settings)}


MODEL = Counts
