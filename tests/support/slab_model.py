"""A linear model whose active causes have Gaussian values, and a scheme that draws states and values."""

from typing import Protocol, runtime_checkable

import numpy as np
from pydantic import Field
from scipy.special import ndtri

from parallel_et.core.latent_states import values_by_atom
from parallel_et.core.posterior import Draws, Sparse
from parallel_et.models import (
    PI,
    SIGMA,
    Bernoulli,
    EnumeratingView,
    Gauss,
    Model,
    Param,
    Statistic,
    binary,
    with_empty_row,
)
from parallel_et.schemes.et import ETOptions, ExpectationTruncation

SPREAD = 0.5
MAX_VALUE = 20.0
"""Largest magnitude of a value."""


@runtime_checkable
class DrawsValues(Protocol):
    """A block view that draws the values of causes."""

    def draw_values(self, states, normals):
        """Draw the values (..., g) of active causes given the point, from normal numbers (..., g)."""


class SlabView(EnumeratingView):
    """A block of points under the model."""

    def draw_values(self, states, normals):
        params, Y = self.evaluator.params, self.block.Y[:, None]
        fields, precision = with_empty_row(params["W"].T)[states], 1 / params["sigma"] ** 2
        A = precision * fields @ fields.swapaxes(-1, -2) + np.eye(states.shape[-1]) / SPREAD**2
        c = precision * (fields * Y[..., None, :]).sum(-1) + 1 / SPREAD**2
        upper = np.linalg.cholesky(A).swapaxes(-1, -2)
        values = np.linalg.solve(A, c[..., None]) + np.linalg.solve(upper, normals[..., None])
        return np.clip(values[..., 0], -MAX_VALUE, MAX_VALUE)

    def reconstruct(self, posterior):
        return posterior.means(self.model.H) @ self.evaluator.params["W"].T

    def accumulate(self, stage, posterior, used, total):
        H = self.model.H
        point, states, q = posterior.pairs(used)
        s = values_by_atom(states, posterior.drawn(used), H)
        total.add("active", q @ binary(states, H))
        total.add("ys", (q[:, None] * s).T @ self.block.Y[point])
        total.add("ss", (q[:, None] * s).T @ s)


class Slab(Model):
    """y = W s + noise, s_h = b_h z_h, z_h ~ N(1, SPREAD^2). The joint of y and b has the values integrated out."""

    params = {"W": Param("DH", "generative fields"), "sigma": SIGMA, "pi": PI}
    learns = ("W", "pi")
    View = SlabView

    def __init__(self, options, dims):
        super().__init__(options, dims)
        self.prior, self.noise = Bernoulli(self.H), Gauss()

    def mean(self, params, states):
        return binary(states, self.H) @ params["W"].T

    def log_joint(self, params, Y, states):
        fields = params["W"] * binary(states, self.H)[..., None, :]
        variance = params["sigma"] ** 2 * np.eye(self.D) + SPREAD**2 * fields @ fields.swapaxes(-1, -2)
        off = Y - fields.sum(-1)
        square = (off * np.linalg.solve(variance, off[..., None])[..., 0]).sum(-1)
        size = np.linalg.slogdet(2 * np.pi * variance)[1]
        return self.prior.log(params, states) - (square + size) / 2

    def statistics(self, stage):
        ys = Statistic((self.H, self.D), lambda params, summary: MAX_VALUE * summary.largest)
        return {"active": Statistic((self.H,)), "ys": ys, "ss": Statistic((self.H, self.H), MAX_VALUE**2)}

    def maximise(self, stage, params, sums, settings, summary):
        points = float(sums["points"])
        W = settings.algebra.solve_fields(params["W"].T, sums["ys"], sums["ss"], points).T
        return {"W": W, "pi": self.prior.learn(params, sums["active"], points, settings)}


class DrawingOptions(ETOptions):
    """The keys of [inference]."""

    draws: int = Field(20, ge=1)


class Drawing(ExpectationTruncation):
    """A scheme with draws from the truncated posterior, and the evidence of this posterior."""

    Options = DrawingOptions
    needs = (DrawsValues,)

    def __init__(self, options, latents):
        super().__init__(options, latents)
        self.draws = options.draws

    def infer(self, context, block, kept):
        tabled, _ = super().infer(context, block, kept)
        rising = tabled.q.dense(self.count).cumsum(1)
        chance = context.random.uniforms("states", block.first, (len(block), self.draws))
        index = (chance[:, :, None] * rising[:, None, -1:] >= rising[:, None, :-1]).sum(-1)
        states = self.table.states(tabled.candidates)[np.arange(len(block))[:, None], index]
        uniforms = context.random.uniforms("values", block.first, (len(block), self.draws * self.max_active))
        normals = ndtri(uniforms + 2.0**-54).reshape(states.shape)
        values = context.evaluator.observe(block).draw_values(states, normals)
        weights = np.full(index.shape, 1 / self.draws)
        return Draws(tabled.evidence, states, Sparse.of(weights), values), kept

    def extended(self, latents, most):
        return None


MODEL, SCHEME = Slab, Drawing
