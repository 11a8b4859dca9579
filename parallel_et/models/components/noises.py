"""How points are distributed around the mean of their state."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy.special import gammaln, xlog1py, xlogy

from parallel_et.core.options import ModelOptions
from parallel_et.core.types import Param, Params, Rule, Summary
from parallel_et.errors import UserError
from parallel_et.models.components.rounding import FAR, residual_floor

SMALLEST = 1e-50
"""Least standard deviation of the noise."""


class Gauss:
    """Independent Gaussian noise of the standard deviation sigma ()."""

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """log p(y | mean), (...)."""
        gap, variance = Y - mean, float(params["sigma"]) ** 2
        return -0.5 * (np.einsum("...d,...d->...", gap, gap) / variance + Y.shape[-1] * np.log(2 * np.pi * variance))

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Points around their means."""
        return mean + params["sigma"] * rng.standard_normal(mean.shape)

    def learn(self, params: Params, error: float, points: float, summary: Summary) -> np.ndarray:
        """Return the new sigma, not below its floor.

        Parameters
        ----------
        error : sum of <|y - mean(s)|^2> over the points
        points : number of points
        """
        sigma = np.sqrt(max(0.0, error) / (points * summary.dims))
        return np.array(max(sigma, sigma_floor(summary)))

    def at_limits(self, params: Params, summary: Summary) -> Iterator[str]:
        """Yield a clause if sigma is at its floor, so small that products are too coarse, or below rounding errors."""
        sigma, rounding = float(params["sigma"]), residual_floor(summary)
        if sigma < rounding:
            yield (
                f"sigma = {sigma:.3g} is below the rounding errors of the data, {rounding:.3g}: "
                "the evidence of points is rounding noise"
            )
        elif sigma == sigma_floor(summary):
            yield f"sigma = {sigma:.3g} is at its floor, the rounding errors of the data"
        elif 0.5 * summary.dims * (summary.rms / sigma) ** 2 > FAR:
            yield (
                f"sigma = {sigma:.3g} is small beside the data, with a root mean square of {summary.rms:.3g}: "
                "states may be compared by residuals, which takes longer"
            )


MANY = 2.0**53
"""A mean of so many counts that their distribution is Gaussian to more digits than a double has."""


STIRLING = 32.0
"""Count from which on four terms of Stirling's series have the accuracy of a double."""
TINY = 1e-290
"""Counts below this are zero."""


class Poisson:
    """Counts of the mean's size; values between the whole numbers are taken as they are."""

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """log p(y | mean), (...)."""
        return (log_peak(Y) - deviance(Y, mean)).sum(-1)

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Counts; around means beyond ``MANY``, which numpy draws none of, by their Gaussian."""
        drawn = rng.poisson(np.minimum(mean, MANY)).astype(np.float64)
        many = mean > MANY
        if many.any():
            drawn[many] = np.rint(mean[many] + np.sqrt(mean[many]) * rng.standard_normal(int(many.sum())))
        return drawn

    def check(self, summary: Summary) -> None:
        """Refuse data that no counts, nor values between them, can be."""
        if summary.negative:
            raise UserError(f"data: expected counts for Poisson noise, found {summary.negative:.1%} negative values")


def log_peak(Y: np.ndarray) -> np.ndarray:
    """Return log p(y | mean = y) of Poisson counts, y log y - y - log y!, by Stirling's series where y is large."""
    large = np.maximum(Y, STIRLING)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * large**2)) / large**2) / large**2) / large
    return np.where(Y < STIRLING, xlogy(Y, Y) - Y - gammaln(Y + 1), -0.5 * np.log(2 * np.pi * large) - series)


def deviance(Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return y log(y / mean) - y + mean, from the gap between count and mean, which keeps the digits of large ones."""
    positive = Y > TINY
    gap = np.divide(mean - Y, Y, where=positive, out=np.zeros(np.broadcast(Y, mean).shape))
    near = np.abs(gap) < 0.5
    close = Y * (gap - np.log1p(np.where(near, gap, 0.0)))
    with np.errstate(divide="ignore"):
        distant = mean - Y - xlogy(Y, mean / np.where(positive, Y, 1.0))
    return np.where(positive, np.where(near, close, distant), mean)


class Binary:
    """Values of 0 and 1; the mean is the probability of a 1."""

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """log p(y | mean), (...)."""
        return (xlogy(Y, mean) + xlog1py(1 - Y, -mean)).sum(-1)

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Zeros and ones."""
        return (rng.random(mean.shape) < mean).astype(np.float64)


def sigma_floor(summary: Summary) -> float:
    """Return the least sigma that is learned: below it residuals are rounding errors, or 1 / sigma^2 is no number."""
    return max(SMALLEST, residual_floor(summary) or 1e-6)


SIGMA = Param(
    "",
    "standard deviation of the noise, or where it begins",
    Rule(
        lambda causes, summary: max(summary.spread, sigma_floor(summary)),
        "the spread of the data: the root mean square of what is left when each dimension has its mean subtracted",
    ),
    SMALLEST,
    1e50,
)


class NoiseOptions(ModelOptions):
    """The keys of [model] for models with a choice of noise."""

    noise: Literal["gauss", "poisson"] = Field(
        "gauss", description="how points are distributed around their means: as Gaussians of width sigma, or as counts"
    )

    @classmethod
    def absent(cls, given: Mapping[str, Any]) -> tuple[str, ...]:
        return ("sigma",) if given.get("noise") == "poisson" else ()


class CountsOptions(ModelOptions):
    """The keys of [model] for models of counts alone."""

    noise: Literal["poisson"] = Field("poisson", description="how points are distributed around their means: as counts")


def without_sigma(params: Mapping[str, Param], options: Any) -> dict[str, Param]:
    """The parameters of a model of which a job chooses a noise without sigma, which it must not give then."""
    for key, found in (("sigma", options.sigma), ("init.sigma", options.init.sigma)):
        if found is not None:
            raise UserError(f'model.{key}: expected none with noise = "{options.noise}", found {found}')
    if "sigma" in options.learn:
        found = ", ".join(options.learn)
        raise UserError(f'model.learn: expected no sigma with noise = "{options.noise}", found {found}')
    return {name: param for name, param in params.items() if name != "sigma"}
