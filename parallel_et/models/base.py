"""What every model offers, and what those with binary causes and Gaussian noise share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from parallel_et.kernels import select
from parallel_et.posterior.states import Posterior, States
from parallel_et.rows import aligned, pad_rows, padded
from parallel_et.schema import LARGEST, Section, either

UNUSED = 1e-12
"""A cause that carries less weight than this share of a point, on average, is unused: its field is kept as it was."""


class GaussInit(Section):
    """Draw each entry from a Gaussian."""

    mean: float = Field(ge=-LARGEST, le=LARGEST, description="mean of the entries")
    std: float = Field(ge=0, le=LARGEST, description="their standard deviation")


class FileInit(Section):
    """Read the array from an HDF5 file."""

    file: str = Field(description="an HDF5 file, such as an earlier result.h5")
    dataset: str = Field("W", description="dataset in it, of dimensions x causes, such as params/W")


class Init(Section):
    """How the parameters begin; without W the model's own rule, from the mean and spread of the data."""

    W: either(GaussInit, FileInit, "file") | None = Field(  # type: ignore[valid-type]
        None, description="mean and std, or file and dataset; by default the model's own rule"
    )


SMALLEST = 1e-50
"""Least standard deviation of the noise."""


class ModelOptions(Section):
    """The keys of [model] that all models have."""

    name: str = Field(description="which model")
    causes: int = Field(ge=1, le=1_000_000, description="number of hidden causes, H")
    sigma: float = Field(
        1.0, ge=SMALLEST, le=LARGEST, description="standard deviation of the noise, or where it begins"
    )
    pi: float = Field(0.1, gt=0, lt=1, description="probability that a cause is active, or where it begins")
    learn: list[Literal["W", "sigma", "pi"]] = Field(["W"], description="the parameters to learn")
    init: Init = Init()


@dataclass(frozen=True)
class Summary:
    """What the whole data set is like: number of points, dimensions, and some magnitudes."""

    points: int
    dims: int
    largest: float
    mean: float
    rms: float
    negative: float


@dataclass(frozen=True)
class Params:
    """The parameters of a model: W (D, H), sigma () and pi (), float64 arrays all."""

    W: np.ndarray
    sigma: np.ndarray
    pi: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "W", np.asfortranarray(self.W))  # a field is contiguous


class Knob(NamedTuple):
    """A schedule of a model's own: its value at a temperature where the job sets none, its least value, its meaning."""

    rule: Callable[[float], float]
    least: float
    does: str


@dataclass(frozen=True)
class Knobs:
    """What the schedules say for one iteration."""

    iteration: int
    temperature: float
    cut: float
    points: int
    noise: Mapping[str, float]
    model: Mapping[str, float]


class Sums(Protocol):
    """Where a model adds its statistics of a block."""

    def add(self, name: str, values: Any) -> None:
        """Add to a statistic, an array of its shape."""

    def words(self, name: str) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        """For kernels that add to a statistic themselves: its scale, its high and low words, flat, and what is to
        become the largest magnitude, scaled, that they added to an element.
        """


class Model(ABC):
    """A generative model with H binary causes of a D-dimensional observation.

    A model is a set of functions without memory: parameters, statistics and posteriors are passed in and out.
    Blocks come with their dimensions padded by zeros: Y (n, self.width), width >= D.
    """

    Options: ClassVar[type[ModelOptions]] = ModelOptions
    aliases: ClassVar[tuple[str, ...]] = ()
    knobs: ClassVar[Mapping[str, Knob]] = {}
    """The model's own schedules by name."""
    nonnegative: ClassVar[bool] = False
    """Whether the fields must not be negative."""
    noisy: ClassVar[tuple[str, ...]] = ("W",)
    """Parameters to which a job may add noise."""
    stages: tuple[str, ...] = ("all",)
    """Passes over the posterior that the M-step takes, each with statistics and a maximisation of its own."""

    def __init__(self, options: Any, dims: int) -> None:
        self.options = options
        self.H = options.causes
        self.D = dims
        self.width = padded(dims)

    @abstractmethod
    def initial_fields(self, summary: Summary) -> tuple[float, float]:
        """Mean and standard deviation of the initial W where the job names none."""

    @abstractmethod
    def nanoseconds(self, states: int) -> float:
        """What a point with so many states takes in an iteration, roughly."""

    @abstractmethod
    def prepare(self, params: Params, knobs: Knobs) -> Any:
        """What one iteration computes once, from the parameters alone."""

    @abstractmethod
    def observe(self, ready: Any, Y: np.ndarray, singletons: bool) -> Any:
        """What a block needs more than once; also all products with the fields, if single causes are considered."""

    @abstractmethod
    def select(self, ready: Any, seen: Any, count: int) -> np.ndarray:
        """The ``count`` causes with the largest selection function S_h(y_n), in rising order; (n, count) int32."""

    @abstractmethod
    def posterior(self, ready: Any, seen: Any, candidates: np.ndarray, states: States, beta: float) -> Posterior:
        """q_n ~ p(s, y_n)^beta on all states of the table over the candidates (n, H'), and on single causes if seen.

        What was ``seen`` of the block may be used up by this.
        """

    @abstractmethod
    def log_singletons(self, ready: Any, seen: Any) -> np.ndarray:
        """log p(s, y_n) of the H states with a single cause; (n, H)."""

    @abstractmethod
    def means(self, posterior: Posterior, states: States) -> np.ndarray:
        """<s_h> of each point of a block, (n, H)."""

    @abstractmethod
    def reconstruction(self, ready: Any, posterior: Posterior, states: States) -> np.ndarray:
        """The expected mean of y given s of each point of a block, (n, D)."""

    @abstractmethod
    def best_states(self, ready: Any, Y: np.ndarray, posterior: Posterior, states: States) -> np.ndarray:
        """The causes of the most probable of the considered states, padded with -1; (n, gamma) int32.

        Of equal states the first of the table; a single cause outside the candidates only if it is better.
        """

    @abstractmethod
    def statistics_like(self, stage: str) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the sufficient statistics of a stage."""

    @abstractmethod
    def bounds(self, stage: str, params: Params, summary: Summary) -> Mapping[str, float]:
        """For each statistic the largest magnitude that a single point can add to one of its elements."""

    @abstractmethod
    def statistics(
        self, stage: str, ready: Any, Y: np.ndarray, posterior: Posterior, used: np.ndarray, states: States, total: Sums
    ) -> None:
        """Add the sufficient statistics of the points of a block that are ``used``, (n,) bool, to ``total``."""

    @abstractmethod
    def maximise(
        self, stage: str, params: Params, total: Mapping[str, np.ndarray], knobs: Knobs, gamma: int, summary: Summary
    ) -> Params:
        """The M-step, from the statistics of all points in M."""

    @abstractmethod
    def usage(self, total: Mapping[str, np.ndarray]) -> np.ndarray:
        """Weight of each cause in the first stage's statistics, (H,)."""

    @abstractmethod
    def mean(self, params: Params, s: np.ndarray) -> np.ndarray:
        """Mean of y given the states s (n, H); (n, D)."""

    def at_rest(self, points: int) -> Knobs:
        """What an iteration with all ``points`` points, at temperature 1 and without noise, would use."""
        return Knobs(0, 1.0, 0.0, points, {}, {name: knob.rule(1.0) for name, knob in self.knobs.items()})

    def constrain(self, params: Params) -> Params:
        """The nearest allowed parameters."""
        return replace(params, W=np.maximum(params.W, 0.0)) if self.nonnegative else params

    def initial(self, rng: np.random.Generator, summary: Summary, given: Mapping[str, np.ndarray]) -> Params:
        """Parameters to begin with; ``given`` ones are taken as they are."""
        init = self.options.init.W
        mean, std = (init.mean, init.std) if isinstance(init, GaussInit) else self.initial_fields(summary)
        W = given["W"] if "W" in given else rng.normal(mean, std, (self.D, self.H))
        start = Params(np.array(W, np.float64), np.array(float(self.options.sigma)), np.array(float(self.options.pi)))
        return self.constrain(start)

    def expected_share(self, params: Params, gamma: int) -> float:
        """Share of the points that the prior expects to have at most ``gamma`` active causes (ET eq. 23)."""
        return float(activity(float(params.pi), self.H, gamma).sum())

    def generate(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw ``count`` points from the model; returns y (n, D) and s (n, H)."""
        s = (rng.random((count, self.H)) < params.pi).astype(np.int8)
        return self.mean(params, s) + params.sigma * rng.standard_normal((count, self.D)), s


class GaussModel(Model):
    """Shared by all models with a Bernoulli prior and Gaussian noise: constants of the joint, sigma and pi."""

    def log_prior(self, params: Params) -> tuple[float, float]:
        """log p(s = 0, y = 0) without the exponent, and what each active cause adds to the log prior."""
        sigma, pi = float(params.sigma), float(params.pi)
        empty = self.H * np.log1p(-pi) - 0.5 * self.D * np.log(2 * np.pi * sigma**2)
        return empty, np.log(pi) - np.log1p(-pi)

    def learn_pi(self, params: Params, active: float, points: float, knobs: Knobs, gamma: int) -> Params:
        """New pi from ``active``, the sum of <|s|> over ``points`` points; under a cut with its correction.

        Without a cut pi = <|s|> / H. With one, M holds points of at most gamma causes, and
        pi = pi A / B <|s|> with A = sum_{g <= gamma} p(g), B = sum_{g <= gamma} g p(g), p binomial.
        """
        if "pi" not in self.options.learn or points == 0:
            return params
        new = active / points / self.H
        if knobs.cut > 0:
            p = activity(float(params.pi), self.H, gamma)
            expected = (np.arange(gamma + 1) * p).sum()
            if expected == 0:  # so few active causes are impossible under this pi
                return params
            new = float(params.pi) * p.sum() / expected * active / points
        return replace(params, pi=np.array(np.clip(new, 1e-9, 1 - 1e-9)))

    def learn_sigma(self, params: Params, error: float, points: float, summary: Summary) -> Params:
        """New sigma from ``error``, the sum of <|y - mean(s)|^2> over ``points`` points; never below its floor."""
        if "sigma" not in self.options.learn or points == 0:
            return params
        sigma = np.sqrt(max(0.0, error) / (points * self.D))
        return replace(params, sigma=np.array(max(sigma, self.sigma_floor(summary))))

    def sigma_floor(self, summary: Summary) -> float:
        """Below this the squared errors are rounding errors of |y|^2, or 1 / sigma^2 is no number."""
        return max(SMALLEST, 1e-6 * np.sqrt(self.D) * summary.largest or 1e-6)


def activity(pi: float, causes: int, gamma: int) -> np.ndarray:
    """Prior probability of g = 0, ..., gamma active causes, (gamma + 1,)."""
    return np.array([comb(causes, g) * pi**g * (1 - pi) ** (causes - g) for g in range(gamma + 1)])


def best(scores: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` causes with the largest scores (n, H), in rising order; of equal scores those with lower index."""
    candidates = np.empty((len(scores), count), np.int32)
    select.largest(np.ascontiguousarray(scores), candidates)
    return candidates


def fields_of(params: Params) -> np.ndarray:
    """The fields as rows, padded: W^T (H, width)."""
    return pad_rows(params.W.T)


def all_products(Y: np.ndarray, WT: np.ndarray) -> np.ndarray:
    """Y W of a block Y (n, width) and the fields as rows, (n, H)."""
    return np.matmul(Y, WT.T, out=aligned((len(Y), len(WT))))


def overshoot(Y: np.ndarray, WT: np.ndarray) -> np.ndarray:
    """Log of the selection function of ET eq. 28 up to a factor, for fields that must stay below y; (n, H)."""
    scores = np.empty((len(Y), len(WT)))
    select.overshoot(Y, WT, scores)
    return scores


def block_norms(Y: np.ndarray) -> np.ndarray:
    """|y_n|^2 of a block, (n,)."""
    norms = np.empty(len(Y))
    select.square_norms(Y, norms)
    return norms
