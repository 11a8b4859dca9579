"""Causes with values: a linear model whose active causes are Gaussian, and a scheme that draws states and values."""

import numpy as np
from pydantic import Field
from scipy.special import ndtri

from parallel_et.core.posterior import Draws, Sparse
from parallel_et.core.states import valued
from parallel_et.models import PI, SIGMA, Bernoulli, Gauss, Model, Param, Sum, binary, solve_fields, with_none
from parallel_et.schemes.et import ETOptions, ExpectationTruncation

SPREAD = 0.5
MOST = 20.0
"""Magnitude that a value may have."""


class Slab(Model):
    """y = W s + noise, s_h = b_h z_h with z_h ~ N(1, SPREAD^2): the joint of y and b has the values integrated out."""

    params = {"W": Param("DH", "generative fields"), "sigma": SIGMA, "pi": PI}
    learns = ("W", "pi")

    def __init__(self, options, dims):
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Gauss()

    def log_joint(self, ready, Y, states):
        fields = ready["W"] * binary(states, self.H)[..., None, :]
        variance = ready["sigma"] ** 2 * np.eye(self.D) + SPREAD**2 * fields @ fields.swapaxes(-1, -2)
        off = Y - fields.sum(-1)
        square = (off * np.linalg.solve(variance, off[..., None])[..., 0]).sum(-1)
        size = np.linalg.slogdet(2 * np.pi * variance)[1]
        return self.prior.log(ready, states) - (square + size) / 2

    def draw_values(self, ready, Y, states, normals):
        """Values (..., g) of the active causes, given them and the point, made of normal numbers (..., g)."""
        fields, precision = with_none(ready["W"].T)[states], 1 / ready["sigma"] ** 2
        A = precision * fields @ fields.swapaxes(-1, -2) + np.eye(states.shape[-1]) / SPREAD**2
        c = precision * (fields * Y[..., None, :]).sum(-1) + 1 / SPREAD**2
        upper = np.linalg.cholesky(A).swapaxes(-1, -2)
        values = np.linalg.solve(A, c[..., None]) + np.linalg.solve(upper, normals[..., None])
        return np.clip(values[..., 0], -MOST, MOST)

    def reconstruct(self, ready, params, posterior):
        return posterior.means(self.H) @ params["W"].T

    def sums(self, stage):
        ys = Sum((self.H, self.D), lambda params, summary: MOST * summary.largest)
        return {"active": Sum((self.H,)), "ys": ys, "ss": Sum((self.H, self.H), MOST**2)}

    def collect(self, stage, ready, block, posterior, used, total):
        point, states, q = posterior.pairs(used)
        s = valued(states, posterior.drawn(used), self.H)
        total.add("active", q @ binary(states, self.H))
        total.add("ys", (q[:, None] * s).T @ block.Y[point])
        total.add("ss", (q[:, None] * s).T @ s)

    def maximise(self, stage, params, sums, knobs, summary):
        points = float(sums["points"])
        W = solve_fields(params["W"].T, sums["ys"], sums["ss"], points)[0].T
        return {"W": W, "pi": self.prior.learn(params, sums["active"], points, knobs)}


class DrawingOptions(ETOptions):
    """The keys of [inference]."""

    draws: int = Field(20, ge=1)


class Drawing(ExpectationTruncation):
    """Draws of the truncated posterior; the evidence is its own."""

    Options = DrawingOptions
    needs = ("log_joint", "draw_values")

    def __init__(self, options, latents):
        super().__init__(options, latents)
        self.draws = options.draws

    def infer(self, step, block, kept):
        tabled, _ = super().infer(step, block, kept)
        rising = tabled.q.dense(self.count).cumsum(1)
        chance = step.random.uniforms("states", block.first, (len(block), self.draws))
        index = (chance[:, :, None] * rising[:, None, -1:] >= rising[:, None, :-1]).sum(-1)
        states = self.table.states(tabled.candidates)[np.arange(len(block))[:, None], index]
        uniforms = step.random.uniforms("values", block.first, (len(block), self.draws * self.most))
        normals = ndtri(uniforms + 2.0**-54).reshape(states.shape)
        values = step.model.draw_values(step.ready, block.Y[:, None], states, normals)
        weights = np.full(index.shape, 1 / self.draws)
        return Draws(tabled.evidence, states, Sparse.of(weights), values), kept

    def raised(self, latents, most):
        return None


MODEL, SCHEME = Slab, Drawing
