"""The contract between the engine, the models and the schemes; ``terms`` has the values that they exchange.

The author of a model writes four declarations (``params``, ``latents``, ``prior``, ``noise``) and four methods
(``mean``, ``statistics``, ``accumulate``, ``maximise``). All other methods have defaults, which enumerate states. A
family of models with a faster E-step returns an evaluator of its own. ``capabilities`` has the protocols that only some
models implement.

A field is the vector that a cause contributes to the mean, a column of W. An atom is a non-zero value, or a place, of a
cause; binary causes have one atom each. A state is a set of active atoms; the empty state has none.

Shapes: N points of the data, n points of a block, D dimensions, H causes, C or H' candidates of a point, K states of a
point, g places of a state. A free place of a state holds -1. A state whose first place is ``VACANT`` does not exist.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

import numpy as np

from parallel_et.core import gibbs
from parallel_et.core.gibbs import Sweeps
from parallel_et.core.latent_states import Latents, Table, best, clashes, nearest
from parallel_et.core.posterior import Listed, Posterior, Sparse, Tabled, Weights, sum_rows, weigh
from parallel_et.core.schema import Section
from parallel_et.core.types import (
    Block,
    Choosy,
    Noise,
    OwnSchedule,
    Param,
    Params,
    Prior,
    Settings,
    Statistic,
    Summary,
    Sums,
    Totals,
)
from parallel_et.errors import UserError
from parallel_et.kernels import VACANT
from parallel_et.kernels.rows import padded

UNUSED = 1e-12
"""Smallest mean posterior weight of a cause per point. Below it, the M-step keeps the field of the cause."""
PIECE = 1 << 20
"""Numbers, pairs of point and state times dimensions, that a default computes at a time."""


class Collector(Protocol):
    """A trainable with parameters bound, which collects the statistics of blocks."""

    def collect(self, stage: str, block: Block, posterior: Posterior, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of the points of a block that are ``used``, (n,) bool, to ``total``."""


class Trainable(ABC):
    """An object whose parameters follow from sums over points: a model, or a scheme or selection that learns.

    Attributes
    ----------
    params : its parameters by name
    stages : passes over the posteriors that its M-step takes, each with statistics and a maximisation of its own
    online : whether its M-step takes a step from the old parameters by the sums of a minibatch, without averages
    distributed : whether its M-step is so large that all ranks share it
    """

    params: Mapping[str, Param] = {}
    stages: tuple[str, ...] = ("all",)
    online: bool = False
    distributed: bool = False

    @abstractmethod
    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        """Return the shape and the per-point bound of each statistic of a stage."""

    @abstractmethod
    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        """Return the parameters that the M-step changes; all others stay as they are.

        ``sums`` has the declared statistics, and as ``points`` the number of points in them.
        """

    @abstractmethod
    def evaluator(self, params: Params, settings: Settings) -> Collector:
        """Return the trainable with its parameters bound."""


class Evaluator:
    """A model with its parameters bound: the values that an iteration computes once.

    Families of models derive from it, with faster views.
    """

    def __init__(self, model: "Model", params: Params, settings: Settings) -> None:
        self.model = model
        self.params = params
        self.settings = settings
        self._lock = Lock()
        self._nearest = np.empty((0, 0), np.int32)

    def observe(self, block: Block, singles: bool = False) -> "BlockView":
        """Return a block bound to this evaluator; with ``singles``, K_n also has each atom alone, candidate or not."""
        return self.model.View(self, block, singles)

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y) of points (..., D) and states (..., g), (...)."""
        return self.model.log_joint(self.params, Y, states)

    def nearest_atoms(self, count: int) -> np.ndarray:
        """Return the atoms whose means alone are nearest to that of each, (atoms, count) int32; computed once."""
        with self._lock:
            if not len(self._nearest):
                alone = np.arange(self.model.latents.atoms, dtype=np.int32)[:, None]
                self._nearest = nearest(self.model.mean(self.params, alone), count)
            return self._nearest

    def collect(self, stage: str, block: Block, posterior: Posterior, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of the points of a block that are ``used``, (n,) bool, to ``total``."""
        self.observe(block).accumulate(stage, posterior, used, total)


P = TypeVar("P", bound=Posterior)


class BlockView(ABC, Generic[P]):
    """A block of points bound to an evaluator.

    Attributes
    ----------
    evaluator, block : as given
    singles : whether K_n also has each atom alone, candidate or not
    """

    def __init__(self, evaluator: Evaluator, block: Block, singles: bool = False) -> None:
        self.evaluator = evaluator
        self.model = evaluator.model
        self.block = block
        self.singles = singles

    def __len__(self) -> int:
        return len(self.block)

    def part(self, some: np.ndarray | slice) -> Self:
        """Return a view of some of the points."""
        return type(self)(self.evaluator, Block(self.block.rows[some], self.block.dims, 0), self.singles)

    @abstractmethod
    def log_singles(self) -> np.ndarray:
        """Return log p(s, y_n) of all states with a single atom, (n, atoms)."""

    def select(self, count: int) -> np.ndarray:
        """Return the ``count`` most promising atoms in rising order, (n, count) int32; by default the best alone."""
        return best(self.log_singles(), count)

    def best(self, posterior: P) -> np.ndarray:
        """Return the most probable of the considered states, of equal ones the first, (n, g)."""
        assert isinstance(posterior, Weights)
        return posterior.best()

    @abstractmethod
    def reconstruct(self, posterior: P) -> np.ndarray:
        """Return the expected mean of y of each point, (n, D)."""

    @abstractmethod
    def accumulate(self, stage: str, posterior: P, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of the points that are ``used``, (n,) bool, to ``total``."""


class EnumeratingView(BlockView[P]):
    """A block whose posterior is computed by enumerating states, each by the joint of the model."""

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y_n) of states (n, K, g) listed for each point, (n, K); -inf for vacant places."""
        logs = np.empty(states.shape[:2])
        for some in self.pieces(len(states), states.shape[1]):
            logs[some] = self.evaluator.log_joint(self.block.Y[some, None], np.maximum(states[some], -1))
        logs[states[:, :, 0] == VACANT] = -np.inf
        return logs

    def log_singles(self) -> np.ndarray:
        states = np.arange(self.model.latents.atoms, dtype=np.int32)[:, None]
        logs = np.empty((len(self), len(states)))
        for some in self.pieces(len(self), len(states)):
            logs[some] = self.evaluator.log_joint(self.block.Y[some, None], states)
        return logs

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Posterior:
        """Return q_n(s) = p(s, y_n)^beta / sum of p(s', y_n)^beta for the states of a table over candidates (n, C).

        With ``singles``, the states of the other atoms alone count too. A view may use up its intermediate results.
        """
        latents, logs = self.model.latents, np.empty((len(candidates), len(table)))
        everything = candidates.shape[1] == latents.atoms
        for some in self.pieces(len(candidates), len(table)):
            states = table.members if everything else table.states(candidates[some])
            logs[some] = self.evaluator.log_joint(self.block.Y[some, None], states)
            if latents.owner and not everything:
                logs[some][clashes(states, latents.owner)] = -np.inf
        if self.singles:
            alone = self.log_singles()
            np.put_along_axis(alone, candidates, -np.inf, 1)  # these are in the table
            logs = np.hstack([logs, alone])
        evidence, q = weigh(logs, beta)
        return Tabled(evidence, candidates, table, *map(Sparse.of, np.split(q, [len(table)], 1)))

    def over_listed(self, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> Posterior:
        """Return the posterior of states (n, K, g) listed for each point with weights q.

        A model whose causes have values adds their moments.
        """
        return Listed(evidence, states, q)

    def sample(self, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        """Return the posterior by Gibbs sampling of p(s, y_n)^beta over candidates (n, C) in rising order."""
        return gibbs.sample(self, self.model.latents, candidates, sweeps, beta)

    def reconstruct(self, posterior: P) -> np.ndarray:
        assert isinstance(posterior, Weights)
        point, states, q = posterior.pairs(np.ones(len(self), bool))
        total = np.zeros((len(self), self.model.D))
        for some in self.pieces(len(q), 1):
            means = self.model.mean(self.evaluator.params, states[some])
            total += sum_rows(point[some], q[some, None] * means, len(total))
        return total

    def accumulate(self, stage: str, posterior: P, used: np.ndarray, total: Sums) -> None:
        assert isinstance(posterior, Weights)
        model, declared = self.model, self.model.statistics(stage)
        point, states, q = posterior.pairs(used)
        for some in self.pieces(len(q), 1):
            found = model.accumulate(stage, self.evaluator.params, self.block.Y[point[some]], states[some], q[some])
            if set(found) != set(declared):
                where, expected = f"{type(model).__name__}.accumulate", ", ".join(declared)
                raise UserError(f"{where}: expected the statistics {expected}, found {', '.join(found)}")
            for name, values in found.items():
                total.add(name, values)

    def pieces(self, count: int, states: int) -> Iterator[slice]:
        """Yield slices of ``count`` points with so many states each, small enough to compute at a time."""
        step = max(1, PIECE // (states * self.model.D))
        return (slice(start, min(start + step, count)) for start in range(0, count, step))


class UndeclaredError(UserError, AttributeError):
    """A declaration is missing; for ``hasattr``, the attribute is."""


class Undeclared:
    """The place of a declaration that a model lacks: using it raises a UserError."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise UndeclaredError(f"model: expected a class that declares self.{self.name}, found none")


class Model(Trainable):
    """A generative model p(s, y | params) of points with D dimensions and H causes.

    States come as arrays (..., g) of active atoms, padded with -1, with any axes before the last. Points come as arrays
    (..., D) whose leading axes broadcast with those of the states.

    Attributes
    ----------
    latents : hidden states; by default all sets of the H causes
    prior, noise : distribution of the states, and of points around the mean of their state
    learns : parameters that are learned if a job names none and gives them no number; () for all
    schedules : schedules of its own
    first_job : keys by section that its first job has besides the usual ones
    valued : whether active causes have values, of which a posterior has means and variances
    evidence : whether F_n is a lower bound of log p(y_n) at T = 1; else it is the mean of log p(s, y_n) over q_n
    row_independent : whether the posterior of a point over a table without single causes has the same bits whatever
        points are computed with it; blocks may then be merged. A subclass states this for itself
    sizes : lengths of the axes of its parameters
    grid : rows and columns of the places where causes stand; atom h + x H is then cause h at place x
    View : the class of its views of blocks
    """

    Options: ClassVar[type[Section]]
    View: ClassVar[type[BlockView]] = EnumeratingView
    learns: ClassVar[tuple[str, ...]] = ()
    schedules: ClassVar[Mapping[str, OwnSchedule]] = {}
    first_job: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    valued: ClassVar[bool] = False
    evidence: ClassVar[bool] = True
    row_independent: ClassVar[bool] = False
    prior: Prior = Undeclared("prior")
    noise: Noise = Undeclared("noise")
    latents: Latents
    sizes: Mapping[str, int]
    grid: tuple[int, int] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.row_independent = vars(cls).get("row_independent", False)

    def __init__(self, options: Any, dims: int) -> None:
        self.options = options
        self.H = options.causes
        self.D = dims
        self.width = padded(dims)
        self.latents = Latents(self.H)
        self.sizes = {"D": dims, "H": self.H}

    @abstractmethod
    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        """Return E[y | s] of states (..., g), (..., D)."""

    def accumulate(
        self, stage: str, params: Params, Y: np.ndarray, states: np.ndarray, q: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Return the statistics of m pairs of a point (m, D) and a state (m, g) with weights (m,).

        A model whose view accumulates statistics by itself needs none.
        """
        raise UserError(f"{type(self).__name__}: expected a method accumulate, found none")

    def evaluator(self, params: Params, settings: Settings) -> Evaluator:
        """Return this model bound to the parameters and settings of one iteration."""
        return Evaluator(self, params, settings)

    def log_joint(self, params: Params, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y), (...); by default from prior, mean and noise."""
        return self.prior.log(params, states) + self.noise.log(params, Y, self.mean(params, states))

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return random points (count, D) and their states (count, g)."""
        states = self.prior.draw(params, rng, count)
        return self.noise.draw(params, rng, self.mean(params, states)), states

    def initial_value(self, name: str, summary: Summary) -> tuple[float | np.ndarray, float]:
        """Return the mean and the standard deviation of the initial values of a parameter without a rule of its own.

        The default suits fields of any sign: zero, and a third of the data's root mean square.
        """
        return 0.0, summary.rms / 3 or 1.0

    def constrain(self, params: Params) -> Params:
        """Return the parameters within their limits."""
        limits = {name: (param.low, param.high) for name, param in self.params.items()}
        free = (-np.inf, np.inf)
        return {
            name: value if limits.get(name, free) == free else np.clip(value, *limits[name])
            for name, value in params.items()
        }

    def check(self, summary: Summary) -> None:
        """Raise a UserError for data that the model cannot describe; by default as its noise says."""
        if isinstance(self.noise, Choosy):
            self.noise.check(summary)


def shape_of(model: Model, name: str) -> tuple[int, ...]:
    """Return the shape of a parameter."""
    axes = model.params[name].axes + "H" * (name in model.options.each)
    if unknown := set(axes) - set(model.sizes):
        expected, where = " or ".join(model.sizes), f"{type(model).__name__}.params: {name}"
        raise UserError(f"{where}: expected the axes {expected}, found {''.join(unknown)}")
    return tuple(model.sizes[axis] for axis in axes)
