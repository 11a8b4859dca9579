"""Noise distributions p(y | mean): Gaussian, Poisson and Bernoulli."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy.special import gammaln, xlog1py, xlogy

from parallel_et.core.options import ModelOptions
from parallel_et.core.types import Param, Params, Rule, Summary
from parallel_et.errors import UserError
from parallel_et.models.components.rounding import MAX_BASE_NATS, residual_floor

MIN_SIGMA = 1e-50
"""Smallest standard deviation of the noise."""


class Gauss:
    """Independent Gaussian noise of the standard deviation sigma ()."""

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return log p(y | mean), (...)."""
        gap, variance = Y - mean, float(params["sigma"]) ** 2
        return -0.5 * (np.einsum("...d,...d->...", gap, gap) / variance + Y.shape[-1] * np.log(2 * np.pi * variance))

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Draw points with the given means."""
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
        """Yield a warning if sigma is at its floor, below rounding errors, or too small for products."""
        sigma, rounding = float(params["sigma"]), residual_floor(summary)
        if sigma < rounding:
            yield (
                f"sigma = {sigma:.3g} is below the rounding errors of the data, {rounding:.3g}: "
                "the evidence of points is rounding noise"
            )
        elif sigma == sigma_floor(summary):
            yield f"sigma = {sigma:.3g} is at its floor, the rounding errors of the data"
        elif 0.5 * summary.dims * (summary.rms / sigma) ** 2 > MAX_BASE_NATS:
            yield (
                f"sigma = {sigma:.3g} is small compared with the root mean square of the data, {summary.rms:.3g}: "
                "states may be compared by residuals, which takes longer"
            )


MAX_POISSON_MEAN = 2.0**53
"""Largest mean for which numpy draws counts. Larger counts are Gaussian within the precision of a double."""


STIRLING_COUNT = 32.0
"""Smallest count for which four terms of Stirling's series have double precision."""
MIN_COUNT = 1e-290
"""Smallest positive count. Smaller counts are treated as zero."""


class Poisson:
    """Poisson noise. The density is extended to values between the integers."""

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return log p(y | mean), (...)."""
        return (log_peak(Y) - deviance(Y, mean)).sum(-1)

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Draw counts with the given means; above ``MAX_POISSON_MEAN`` from the Gaussian approximation."""
        drawn = rng.poisson(np.minimum(mean, MAX_POISSON_MEAN)).astype(np.float64)
        many = mean > MAX_POISSON_MEAN
        if many.any():
            drawn[many] = np.rint(mean[many] + np.sqrt(mean[many]) * rng.standard_normal(int(many.sum())))
        return drawn

    def check(self, summary: Summary) -> None:
        """Raise a UserError if data have negative values."""
        if summary.negative:
            raise UserError(f"data: expected counts for Poisson noise, found {summary.negative:.1%} negative values")


def log_peak(Y: np.ndarray) -> np.ndarray:
    """Return log p(y | mean = y) of Poisson counts, y log y - y - log y!, by Stirling's series where y is large."""
    large = np.maximum(Y, STIRLING_COUNT)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * large**2)) / large**2) / large**2) / large
    return np.where(Y < STIRLING_COUNT, xlogy(Y, Y) - Y - gammaln(Y + 1), -0.5 * np.log(2 * np.pi * large) - series)


def deviance(Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return y log(y / mean) - y + mean from the gap between count and mean, which keeps digits of large counts."""
    positive = Y > MIN_COUNT
    gap = np.divide(mean - Y, Y, where=positive, out=np.zeros(np.broadcast(Y, mean).shape))
    near = np.abs(gap) < 0.5
    close = Y * (gap - np.log1p(np.where(near, gap, 0.0)))
    with np.errstate(divide="ignore"):
        distant = mean - Y - xlogy(Y, mean / np.where(positive, Y, 1.0))
    return np.where(positive, np.where(near, close, distant), mean)


class Binary:
    """Bernoulli noise: values of 0 and 1. The mean is the probability of a 1."""

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return log p(y | mean), (...)."""
        return (xlogy(Y, mean) + xlog1py(1 - Y, -mean)).sum(-1)

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Draw zeros and ones with the given means."""
        return (rng.random(mean.shape) < mean).astype(np.float64)


def sigma_floor(summary: Summary) -> float:
    """Return the smallest learned sigma, below which residuals are rounding errors or 1 / sigma^2 overflows."""
    return max(MIN_SIGMA, residual_floor(summary) or 1e-6)


SIGMA = Param(
    "",
    "standard deviation of the noise, or its initial value",
    Rule(
        lambda causes, summary: max(summary.spread, sigma_floor(summary)),
        "the standard deviation of the data: the root mean square after subtraction of the mean of each dimension",
    ),
    MIN_SIGMA,
    1e50,
)


class NoiseOptions(ModelOptions):
    """The keys of [model] for models with a choice of noise."""

    noise: Literal["gauss", "poisson"] = Field(
        "gauss",
        description="distribution of points around their means: Gaussian with standard deviation sigma, or Poisson",
    )

    @classmethod
    def absent(cls, given: Mapping[str, Any]) -> tuple[str, ...]:
        return ("sigma",) if given.get("noise") == "poisson" else ()


class CountsOptions(ModelOptions):
    """The keys of [model] for models with counts only."""

    noise: Literal["poisson"] = Field("poisson", description="distribution of points around their means: Poisson")


def without_sigma(params: Mapping[str, Param], options: Any) -> dict[str, Param]:
    """Return the parameters without sigma for a noise that has none; raise a UserError if the job sets sigma."""
    for key, found in (("sigma", options.sigma), ("init.sigma", options.init.sigma)):
        if found is not None:
            raise UserError(f'model.{key}: expected none with noise = "{options.noise}", found {found}')
    if "sigma" in options.learn:
        found = ", ".join(options.learn)
        raise UserError(f'model.learn: expected no sigma with noise = "{options.noise}", found {found}')
    return {name: param for name, param in params.items() if name != "sigma"}
