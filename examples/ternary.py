"""A user-defined model: each cause adds its field, subtracts the field, or is inactive, s in {-1, 0, 1}."""

import numpy as np

from parallel_et.models import PI, SIGMA, Bernoulli, Gauss, Latents, Model, Param, Statistic, binary, largest


class Ternary(Model):
    """y = W s + noise. Atom h is s_h = 1, atom H + h is s_h = -1, and at most one of the two is active."""

    params = {"W": Param("DH", "generative fields"), "sigma": SIGMA, "pi": PI}

    def __init__(self, options, dims):
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H, variants=2), Gauss()
        self.latents = Latents(2 * self.H, owner=(*range(self.H), *range(self.H)))
        self.signs = np.vstack([np.eye(self.H), -np.eye(self.H)])

    def mean(self, params, states):
        return binary(states, 2 * self.H) @ self.signs @ params["W"].T

    def statistics(self, stage):
        yy = Statistic((self.D,), lambda params, summary: summary.largest**2)
        return {"yy": yy, "ys": Statistic((self.H, self.D), largest), "ss": Statistic((self.H, self.H))}

    def accumulate(self, stage, params, Y, states, q):
        s = binary(states, 2 * self.H) @ self.signs
        return {"yy": q @ Y**2, "ys": (q[:, None] * s).T @ Y, "ss": (q[:, None] * s).T @ s}

    def maximise(self, stage, params, sums, settings, summary):
        points, ys, ss, old = float(sums["points"]), sums["ys"], sums["ss"], params["W"].T
        WT = settings.algebra.solve_fields(old, ys, ss, points) if "W" in self.options.learn else old
        sigma = self.noise.learn(params, sums["yy"].sum() - 2 * np.vdot(WT, ys) + np.vdot(WT, ss @ WT), points, summary)
        return {"W": WT.T, "sigma": sigma, "pi": self.prior.learn(params, np.diag(ss), points, settings)}


MODEL = Ternary
