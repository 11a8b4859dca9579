"""What engine, models and schemes hand to each other: parameters, schedules, sums, points, priors and noises."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from parallel_et.parallel.linear_algebra import LinearAlgebra

Params = Mapping[str, np.ndarray]
"""The parameters of a model and its scheme by name: float64 arrays, fields contiguous (in Fortran's order)."""
Totals = Mapping[str, np.ndarray]
"""The sums over the points of the M-step, by name. Do not modify the arrays: ranks may share them."""
PointStates = dict[str, np.ndarray]
"""Variational states that a scheme keeps of each point between iterations: arrays (points, ...) by name."""


class Summary(NamedTuple):
    """What the whole data set is like.

    Attributes
    ----------
    points, dims : N and D
    largest, mean, rms : magnitude, mean and root mean square of all values
    negative : share of those below zero
    spread : root mean square of what is left of the values when each dimension has its mean subtracted
    offset : root mean square of these means
    constant, empty : dimensions in which all points have the same value, other than zero, or zero
    heights, spreads, means : (D,) largest magnitude, standard deviation and mean of each dimension
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
    heights: np.ndarray = np.empty(0)
    spreads: np.ndarray = np.empty(0)
    means: np.ndarray = np.empty(0)

    def within(self, largest: float) -> "Summary":
        """Return the bounds of the points whose values have at most some magnitude."""
        return self._replace(largest=min(self.largest, largest), heights=np.minimum(self.heights, largest))


class Rule(NamedTuple):
    """Where a parameter begins, as it follows from the number of causes and the data; and that in words."""

    value: Callable[[int, Summary], float]
    words: str


class Param(NamedTuple):
    """A parameter as it is declared; how it starts, is shared, limited, stored and told follows from this.

    Attributes
    ----------
    axes : a letter an axis, of the model's ``sizes``: D dimensions, H causes; "" for a number
    does : what it is
    start : what all its values begin with, or the rule that says it, which makes it a key of [model]; None: as the
        model's ``initial_value`` says
    low, high : its limits
    each : whether a job may have one for each cause, by ``model.each``
    rows : which points of the data its columns begin with, if the job does not say it; "" for none
    """

    axes: str
    does: str
    start: float | Rule | None = None
    low: float = -np.inf
    high: float = np.inf
    each: bool = False
    rows: str = ""


class OwnSchedule(NamedTuple):
    """A schedule of a model's own: its value at a temperature where the job sets none, its least value, its meaning."""

    rule: Callable[[float], float]
    least: float
    does: str


class Settings(NamedTuple):
    """What the schedules say for one iteration.

    Attributes
    ----------
    iteration : its number
    temperature : T
    cut : 0: the M-step uses all points; 1: it uses only the share that ``Prior.share`` expects to fit K_n
    points : number of points that the M-step is to use
    noise : standard deviation of the Gaussian noise that is added to each parameter after the M-step
    model : the values of the model's own schedules
    most : active causes that a considered state has at most
    step : rho in average = (1 - rho) average + rho statistics of the minibatch
    held : whether the engine keeps the old fields, whatever the M-step returns
    algebra : linear algebra for the fields, which all ranks share if the model is large
    pairs : number of pairs of candidates of all points; 0 if other pairs of causes may be active together
    """

    iteration: int
    temperature: float
    cut: float
    points: int
    noise: Mapping[str, float]
    model: Mapping[str, float]
    most: int
    step: float = 1.0
    held: bool = False
    algebra: LinearAlgebra = LinearAlgebra()
    pairs: int = 0

    @property
    def undisturbed(self) -> bool:
        """Whether T = 1, all points are used and no noise is added: the M-step then must not lower the free energy."""
        return self.temperature == 1 and self.cut == 0 and not any(self.noise.values())


Bound = float | Callable[[Params, Summary], float | np.ndarray]
"""The most that one point can add to an element of a statistic; an array is broadcast to its shape."""


def largest(params: Params, summary: Summary) -> float:
    """Return the largest magnitude of the data, a bound of sums of data."""
    return summary.largest


def largest_square(params: Params, summary: Summary) -> float:
    """Return the largest square of the data."""
    return summary.largest**2


class Statistic(NamedTuple):
    """A statistic: its shape, and the most that one point can add to an element, a number or a function."""

    shape: tuple[int, ...]
    bound: Bound = 1.0


class Sums(Protocol):
    """Where the statistics of a block are added."""

    def add(self, name: str, values: Any, first: int = 0) -> None:
        """Add to a statistic an array of its shape, or of a run of its elements from ``first`` on."""

    def words(self, name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """For kernels that add to a statistic themselves: its scale, its high and low words, flat, and what is to
        become the largest magnitude, scaled, that they added to an element.
        """


class Block(NamedTuple):
    """Some points: their rows (n, width >= dims), aligned and padded with zeros, and the index of the first.

    Of a model that treats points alike these may be the points of several blocks, of which each has ``size``.
    """

    rows: np.ndarray
    dims: int
    first: int
    size: int = 1 << 62

    @property
    def Y(self) -> np.ndarray:
        """The points themselves, (n, D)."""
        return self.rows[:, : self.dims]

    def __len__(self) -> int:
        return len(self.rows)


class Prior(Protocol):
    """The distribution p(s) of the states.

    Priors in ``models/components/priors.py`` also have ``learn`` for M-steps. It corrects pi for the points that a cut
    removes.
    """

    def log(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return log p(s) of states (..., g), (...)."""

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return random states (count, g)."""

    def share(self, params: Params, most: int) -> float:
        """Return the expected share of the points with at most ``most`` active causes."""


class Noise(Protocol):
    """The distribution p(y | mean) of points around the mean of their state.

    ``Gauss`` in ``models/components/noises.py`` also has ``learn`` for M-steps.
    """

    def log(self, params: Params, Y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return log p(y | mean) of points and means (..., D), (...)."""

    def draw(self, params: Params, rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
        """Return random points around their means."""


@runtime_checkable
class Choosy(Protocol):
    """A noise that not all data can have."""

    def check(self, summary: Summary) -> None:
        """Raise a UserError for data that cannot have this noise."""


@runtime_checkable
class Limited(Protocol):
    """A model or noise with parameters that have a floor, or a range beyond which double precision fails."""

    def at_limits(self, params: Params, summary: Summary) -> Iterator[str]:
        """Yield a clause for each parameter that is at such a limit."""
