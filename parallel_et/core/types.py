"""The values that the engine, models and schemes exchange: parameters, settings, statistics, blocks, priors, noises."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from parallel_et.parallel.linear_algebra import LinearAlgebra

Params = Mapping[str, np.ndarray]
"""Parameters of a model and its scheme by name: float64 arrays in Fortran order, so that each field is contiguous."""
Totals = Mapping[str, np.ndarray]
"""Sums of the statistics over the points of the M-step, by name. Do not modify the arrays: ranks may share them."""
PointStates = dict[str, np.ndarray]
"""Variational states of the points that a scheme keeps between iterations: arrays (points, ...) by name."""


class Summary(NamedTuple):
    """Summary statistics of the whole data set.

    Attributes
    ----------
    points, dims : N and D
    largest, mean, rms : largest magnitude, mean and root mean square of all values
    negative : fraction of the values that are below zero
    spread : root mean square of the values after the mean of each dimension is subtracted
    offset : root mean square of these means
    constant : number of dimensions in which all points have the same nonzero value
    empty : number of dimensions in which all points are zero
    largest_by_dim, std_by_dim, mean_by_dim : (D,) largest magnitude, standard deviation and mean of each dimension
    """

    points: int
    dims: int
    largest: float
    mean: float
    rms: float
    negative: float
    spread: float = 0.0
    offset: float = 0.0
    constant: int = 0
    empty: int = 0
    largest_by_dim: np.ndarray = np.empty(0)
    std_by_dim: np.ndarray = np.empty(0)
    mean_by_dim: np.ndarray = np.empty(0)

    def within(self, largest: float) -> "Summary":
        """Return the summary with the largest magnitudes limited to ``largest``, for a subset of the points."""
        return self._replace(
            largest=min(self.largest, largest), largest_by_dim=np.minimum(self.largest_by_dim, largest)
        )


class Rule(NamedTuple):
    """A rule for the initial value of a parameter: a function of H and the data, and its description."""

    value: Callable[[int, Summary], float]
    description: str


class Param(NamedTuple):
    """The declaration of a parameter. Initial values, limits and storage follow from it.

    Attributes
    ----------
    axes : one letter per axis, a key of the model's ``sizes``: "DH" for D dimensions x H causes, "" for a number
    description : help text
    start : initial value of all elements, or the ``Rule`` for it, which makes the parameter a key of [model];
        None: random values with the mean and standard deviation of ``Model.initial_value``
    low, high : limits
    each : whether a job may ask for one value per cause (``model.each``)
    rows : default of ``model.init.NAME.rows``, the points that columns are initialised with; "" for none
    """

    axes: str
    description: str
    start: float | Rule | None = None
    low: float = -np.inf
    high: float = np.inf
    each: bool = False
    rows: str = ""


class OwnSchedule(NamedTuple):
    """A schedule that a model adds to [anneal].

    Attributes
    ----------
    rule : default value as a function of the temperature
    low : smallest value that a job may set
    description : help text
    """

    rule: Callable[[float], float]
    low: float
    description: str


class Settings(NamedTuple):
    """The values of the schedules in one iteration.

    Attributes
    ----------
    iteration : index of the iteration, from 0 on
    temperature : T
    cut : strength of the cut: 0 for all points, 1 for the fraction of points that ``Prior.fraction_up_to`` expects
    points : number of points that the M-step uses
    noise : standard deviation of the Gaussian noise that is added to each parameter after the M-step
    model : values of the schedules that the model declares
    max_active : largest number of active causes in a considered state
    step : rho in average = (1 - rho) average + rho statistics of the minibatch
    fields_frozen : whether the engine keeps the old fields, whatever the M-step returns
    algebra : linear algebra for the fields, which all ranks share if the model is large
    pairs : number of pairs of candidates of all points; 0 if other pairs of causes may be active together
    """

    iteration: int
    temperature: float
    cut: float
    points: int
    noise: Mapping[str, float]
    model: Mapping[str, float]
    max_active: int
    step: float = 1.0
    fields_frozen: bool = False
    algebra: LinearAlgebra = LinearAlgebra()
    pairs: int = 0

    @property
    def undisturbed(self) -> bool:
        """True for T = 1 without a cut and without noise: the M-step then must not lower the free energy."""
        return self.temperature == 1 and self.cut == 0 and not any(self.noise.values())


Bound = float | Callable[[Params, Summary], float | np.ndarray]
"""Largest magnitude that one point can add to an element of a statistic. An array is broadcast to its shape."""


def largest(params: Params, summary: Summary) -> float:
    """Return the largest magnitude of the data: the bound for a sum of data."""
    return summary.largest


def largest_square(params: Params, summary: Summary) -> float:
    """Return the largest square of the data: the bound for a sum of squares."""
    return summary.largest**2


class Statistic(NamedTuple):
    """The declaration of a statistic: its shape, and the bound of the contribution of one point to an element."""

    shape: tuple[int, ...]
    bound: Bound = 1.0


class Sums(Protocol):
    """Accumulators of the statistics of all blocks."""

    def add(self, name: str, values: Any, first: int = 0) -> None:
        """Add values to a statistic: an array of its shape, or of its flat elements from ``first`` on."""

    def words(self, name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """Return the memory of a statistic, for kernels that add to it directly.

        Returns
        -------
        scale, high, low : scale, and flat high and low words of the exact sum
        largest : output, the largest scaled magnitude that a kernel added to an element
        """


class Block(NamedTuple):
    """A block of n points, or several merged blocks.

    Attributes
    ----------
    rows : (n, width >= dims), aligned and padded with zeros
    dims : D
    first : index of the first point
    size : number of points of each of the merged blocks
    """

    rows: np.ndarray
    dims: int
    first: int
    size: int = 1 << 62

    @property
    def Y(self) -> np.ndarray:
        """The points without padding, (n, D)."""
        return self.rows[:, : self.dims]

    def __len__(self) -> int:
        return len(self.rows)


class Prior(Protocol):
    """The distribution p(s) of the states.

    Priors in ``models/components/priors.py`` also have ``learn``, the M-step of pi with the correction for a cut.
    """

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return log p(s) of states (..., g), (...)."""

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return random states (count, g)."""

    def fraction_up_to(self, params: Params, max_active: int) -> float:
        """Return the expected fraction of the points with at most ``max_active`` active causes."""


class Noise(Protocol):
    """The distribution p(y | mean) of points around the mean of their state.

    ``Gauss`` in ``models/components/noises.py`` also has ``learn``, the M-step of sigma.
    """

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return log p(y | mean) of points and means (..., D), (...)."""

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Return random points around their means."""


@runtime_checkable
class RestrictsData(Protocol):
    """A noise distribution that suits only some data, such as counts."""

    def check(self, summary: Summary) -> None:
        """Raise a UserError for data that this noise distribution cannot produce."""


@runtime_checkable
class Limited(Protocol):
    """A model or noise whose parameters have a floor, or a range beyond which double precision fails."""

    def at_limits(self, params: Params, summary: Summary) -> Iterator[str]:
        """Yield a warning clause for each parameter that is at its floor or beyond its range."""
