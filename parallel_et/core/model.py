"""The contract between the engine and the models. ``types`` contains the values that they exchange.

The author of a model writes four declarations (``params``, ``latents``, ``prior``, ``noise``) and four methods
(``mean``, ``statistics``, ``accumulate``, ``maximise``). All other methods have defaults, which enumerate states. A
family of models with a faster E-step has its own view. ``capabilities`` contains the protocols that only some models
implement.

Terms:

* A field is the column of W of a cause: its contribution to the mean, in the way in which the model combines causes.
* An atom is a way in which a cause can be active: one of its nonzero values or positions. A binary cause has one atom.
* A state is a set of active atoms, and the empty state contains no atom. States are lists of atoms, padded with -1.
  A state that begins with ``VACANT`` does not exist.

Letters in shapes: N points of the data, n points in a block, D dimensions, H causes, C or H' candidates, K states, g
entries in a state.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

import numpy as np

from parallel_et.core import gibbs
from parallel_et.core.gibbs import Sweeps
from parallel_et.core.latent_states import Latents, Table, best_atoms, clashes, nearest
from parallel_et.core.posterior import Listed, Posterior, Sparse, Tabled, Weights, sum_rows, weigh
from parallel_et.core.schema import Section
from parallel_et.core.types import (
    Block,
    Noise,
    OwnSchedule,
    Param,
    Params,
    Prior,
    RestrictsData,
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
"""Mean posterior weight per point below which a cause is unused. The M-step keeps the field of an unused cause."""
VALUES_AT_ONCE = 1 << 20
"""Number of values (pairs of point and state, times dimensions) that a default computes at a time."""


class Collector(Protocol):
    """A trainable with parameters bound, which collects the statistics of blocks."""

    def collect(self, stage: str, block: Block, posterior: Posterior, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of the used points of a block, ``used`` (n,) bool, to ``total``."""


class Trainable(ABC):
    """An object whose parameters follow from sums over points: a model, or a scheme or selection that learns.

    Attributes
    ----------
    params : declarations of the parameters by name
    stages : stages of the M-step, each with statistics and a maximisation, and each with a pass over all posteriors
    online : whether the M-step takes a step from the old parameters with the sums of a minibatch, without averages
    distributed : whether all ranks share the M-step because it is large
    """

    params: Mapping[str, Param] = {}
    stages: tuple[str, ...] = ("all",)
    online: bool = False
    distributed: bool = False

    @abstractmethod
    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        """Return the shape of each statistic of a stage, and the largest magnitude that one point adds to it."""

    @abstractmethod
    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        """Return the new values of the parameters that this stage changes.

        ``params`` are the parameters after the earlier stages.
        ``sums`` contains the sums of the declared statistics, and their number of points as ``sums["points"]``.
        """

    @abstractmethod
    def evaluator(self, params: Params, settings: Settings) -> Collector:
        """Return the trainable with its parameters bound."""


class Evaluator:
    """A model with its parameters bound.

    Subclasses compute values that depend on the parameters alone, once for all blocks.
    """

    def __init__(self, model: "Model", params: Params, settings: Settings) -> None:
        self.model = model
        self.params = params
        self.settings = settings
        self._lock = Lock()
        self._nearest: dict[int, np.ndarray] = {}

    def observe(self, block: Block, singletons: bool = False) -> "BlockView":
        """Return a block bound to this evaluator; ``singletons`` adds all states with a single atom to K_n."""
        return self.model.View(self, block, singletons)

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y) of points (..., D) and states (..., g), (...)."""
        return self.model.log_joint(self.params, Y, states)

    def nearest_atoms(self, count: int) -> np.ndarray:
        """Return for each atom the atoms with the most similar single-atom means, (atoms, count) int32; cached."""
        with self._lock:
            if count not in self._nearest:
                singletons = np.arange(self.model.latents.atoms, dtype=np.int32)[:, None]
                self._nearest[count] = nearest(self.model.mean(self.params, singletons), count)
            return self._nearest[count]

    def collect(self, stage: str, block: Block, posterior: Posterior, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of the used points of a block, ``used`` (n,) bool, to ``total``."""
        self.observe(block).accumulate(stage, posterior, used, total)


P = TypeVar("P", bound=Posterior)


class BlockView(ABC, Generic[P]):
    """A block of points bound to an evaluator.

    Attributes
    ----------
    evaluator, model, block : evaluator, its model, and the points
    singletons : whether K_n also contains all states with a single atom
    """

    def __init__(self, evaluator: Evaluator, block: Block, singletons: bool = False) -> None:
        self.evaluator = evaluator
        self.model = evaluator.model
        self.block = block
        self.singletons = singletons

    def __len__(self) -> int:
        return len(self.block)

    def subset(self, some: np.ndarray | slice) -> Self:
        """Return a view of the points that an index array or a slice selects."""
        return type(self)(self.evaluator, Block(self.block.rows[some], self.block.dims, 0), self.singletons)

    @abstractmethod
    def log_singletons(self) -> np.ndarray:
        """Return log p(s, y_n) of all states with a single atom, (n, atoms)."""

    def select(self, count: int) -> np.ndarray:
        """Return the ``count`` best candidates, by default by ``log_singletons``, sorted by index; (n, count) int32."""
        return best_atoms(self.log_singletons(), count)

    def best(self, posterior: P) -> np.ndarray:
        """Return the most probable state in K_n of each point, the first in case of ties; (n, g)."""
        assert isinstance(posterior, Weights)
        return posterior.best()

    @abstractmethod
    def reconstruct(self, posterior: P) -> np.ndarray:
        """Return the posterior expectation of the mean of each point, (n, D)."""

    @abstractmethod
    def accumulate(self, stage: str, posterior: P, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of the used points, ``used`` (n,) bool, to ``total``."""


class EnumeratingView(BlockView[P]):
    """A view that enumerates states and evaluates the joint of the model for each."""

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y_n) of states (n, K, g) listed for each point, (n, K); -inf for vacant states."""
        logs = np.empty(states.shape[:2])
        for some in self.pieces(len(states), states.shape[1]):
            logs[some] = self.evaluator.log_joint(self.block.Y[some, None], np.maximum(states[some], -1))
        logs[states[:, :, 0] == VACANT] = -np.inf
        return logs

    def log_singletons(self) -> np.ndarray:
        states = np.arange(self.model.latents.atoms, dtype=np.int32)[:, None]
        logs = np.empty((len(self), len(states)))
        for some in self.pieces(len(self), len(states)):
            logs[some] = self.evaluator.log_joint(self.block.Y[some, None], states)
        return logs

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Posterior:
        """Return q_n(s) = p(s, y_n)^beta / sum of p(s', y_n)^beta for the states of a table over candidates (n, C).

        A table lists states as positions in the candidates, the same for all points.
        With ``singletons``, K_n also contains the single-atom states outside the candidates. The call may overwrite
        intermediate results of the view.
        """
        latents, logs = self.model.latents, np.empty((len(candidates), len(table)))
        everything = candidates.shape[1] == latents.atoms
        for some in self.pieces(len(candidates), len(table)):
            states = table.members if everything else table.states(candidates[some])
            logs[some] = self.evaluator.log_joint(self.block.Y[some, None], states)
            if latents.owner and not everything:
                logs[some][clashes(states, latents.owner)] = -np.inf
        if self.singletons:
            singletons = self.log_singletons()
            np.put_along_axis(singletons, candidates, -np.inf, 1)  # the table contains these states
            logs = np.hstack([logs, singletons])
        evidence, q = weigh(logs, beta)
        return Tabled(evidence, candidates, table, *map(Sparse.of, np.split(q, [len(table)], 1)))

    def over_listed(self, evidence: np.ndarray, states: np.ndarray, q: Sparse) -> Posterior:
        """Return the posterior of states (n, K, g) listed for each point with weights q; subclasses may add moments."""
        return Listed(evidence, states, q)

    def sample(self, candidates: np.ndarray, sweeps: Sweeps, beta: float) -> Posterior:
        """Return the posterior by Gibbs sampling of p(s, y_n)^beta over candidates (n, C), sorted by index."""
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
        """Yield slices of ``count`` points that are small enough to compute with ``states`` states per point."""
        step = max(1, VALUES_AT_ONCE // (states * self.model.D))
        return (slice(start, min(start + step, count)) for start in range(0, count, step))


class UndeclaredError(UserError, AttributeError):
    """A missing declaration. Python's ``hasattr`` sees a missing attribute."""


class Undeclared:
    """A placeholder for a missing declaration: any use raises a UserError."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise UndeclaredError(f"model: expected a class that declares self.{self.name}, found none")


class Model(Trainable):
    """A generative model p(s, y | params) of points with D dimensions and H causes.

    States are arrays (..., g) of active atoms, padded with -1, with any axes before the last. Points are arrays
    (..., D) whose leading axes broadcast with those of the states.

    Attributes
    ----------
    latents : hidden states; by default all sets of the H causes
    prior, noise : distribution of the states, and of points around the mean of their state
    learns : parameters that are learned by default, () for all; a number in the job fixes a parameter
    schedules : schedules that the model adds to [anneal]
    first_job : keys by section that the starter job of this model contains in addition to the usual keys
    valued : whether active causes have values, with posterior means and variances
    evidence : whether F_n is a lower bound of log p(y_n) at T = 1; else it is the mean of log p(s, y_n) over q_n
    row_independent : whether the posterior of a point over a table without singletons is bit-identical in any block,
        so that blocks may be merged. A subclass must declare it again
    sizes : lengths of the axes of the parameters
    grid : rows and columns of the positions where a cause can be, or None; atom h + x H is cause h at position x
    View : class of the views of blocks
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
        """Return the sum of each declared statistic over m pairs of a point (m, D) and a state (m, g), weighted by q.

        A point is in one pair for each of its states.
        Not needed if ``View`` has its own ``accumulate``.
        """
        raise UserError(f"{type(self).__name__}: expected a method accumulate, found none")

    def evaluator(self, params: Params, settings: Settings) -> Evaluator:
        """Return this model bound to the parameters and settings of one iteration."""
        return Evaluator(self, params, settings)

    def log_joint(self, params: Params, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y) = log p(s) + log p(y | mean of s), (...)."""
        return self.prior.log(params, states) + self.noise.log(params, Y, self.mean(params, states))

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return random points (count, D) and their states (count, g)."""
        states = self.prior.draw(params, rng, count)
        return self.noise.draw(params, rng, self.mean(params, states)), states

    def initial_value(self, name: str, summary: Summary) -> tuple[float | np.ndarray, float]:
        """Return the mean and the standard deviation of the random initial values of a parameter without ``start``.

        The default suits fields of any sign: mean 0, and a third of the data's root mean square.
        """
        return 0.0, summary.rms / 3 or 1.0

    def constrain(self, params: Params) -> Params:
        """Return the parameters clipped to their limits; called after every M-step."""
        limits = {name: (param.low, param.high) for name, param in self.params.items()}
        free = (-np.inf, np.inf)
        return {
            name: value if limits.get(name, free) == free else np.clip(value, *limits[name])
            for name, value in params.items()
        }

    def check(self, summary: Summary) -> None:
        """Raise a UserError for data that the model cannot describe; by default use the check of the noise."""
        if isinstance(self.noise, RestrictsData):
            self.noise.check(summary)


def shape_of(model: Model, name: str) -> tuple[int, ...]:
    """Return the shape of a parameter."""
    axes = model.params[name].axes + "H" * (name in model.options.each)
    if unknown := set(axes) - set(model.sizes):
        expected, where = " or ".join(model.sizes), f"{type(model).__name__}.params: {name}"
        raise UserError(f"{where}: expected the axes {expected}, found {''.join(unknown)}")
    return tuple(model.sizes[axis] for axis in axes)
