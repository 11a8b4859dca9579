"""A user-defined model: counts that add up under Poisson noise, such as photons or spikes."""

from pydantic import Field

from parallel_et.models import PI, UNUSED, Bernoulli, Model, ModelOptions, Param, Poisson, Statistic, largest
from parallel_et.models.components.fields import divide_or_keep, sums_by_atom, with_empty_row


class CountsOptions(ModelOptions):
    """The additional keys of [model]."""

    dark: float = Field(0.1, gt=0, le=1e6, description="mean count without active causes")


class Counts(Model):
    """y_d ~ Poisson(dark + sum_h s_h W_dh); responsibilities of dark and causes are proportional to their rates."""

    Options = CountsOptions
    params = {"W": Param("DH", "mean counts of a cause", low=0.0), "pi": PI}

    def __init__(self, options, dims):
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Poisson()

    def initial_value(self, name, summary):
        return summary.mean or 1.0, summary.mean / 3

    def mean(self, params, states):
        return self.options.dark + with_empty_row(params["W"].T)[states].sum(-2)

    def statistics(self, stage):
        return {"counts": Statistic((self.H, self.D), largest), "active": Statistic((self.H,))}

    def accumulate(self, stage, params, Y, states, q):
        counts = sums_by_atom(states, q[:, None] * Y / self.mean(params, states), self.H)
        return {"counts": counts * params["W"].T, "active": sums_by_atom(states, q, self.H)}

    def maximise(self, stage, params, sums, settings, summary):
        active, points = sums["active"], float(sums["points"])
        W = divide_or_keep(sums["counts"].T, active, UNUSED * points, params["W"])
        return {"W": W, "pi": self.prior.learn(params, active, points, settings)}


MODEL = Counts
