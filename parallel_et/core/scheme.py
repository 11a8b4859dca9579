"""The contract between the engine and the schemes: the choice of the states K_n that are considered for each point."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parallel_et.core.latent_states import Latents
from parallel_et.core.model import BlockView, Collector, EnumeratingView, Evaluator, Model, Trainable
from parallel_et.core.posterior import Posterior
from parallel_et.core.random import Random
from parallel_et.core.schema import Section
from parallel_et.core.types import Block, Params, PointStates


class Learner(Trainable):
    """A trainable part of a scheme or selection, with its own initial parameters."""

    @abstractmethod
    def initial_params(self, points: int, dims: int) -> Params:
        """Return its parameters before the first iteration."""


class Context(NamedTuple):
    """The E-step of one iteration, the same for all blocks.

    Attributes
    ----------
    evaluator : the model with its parameters bound
    of_scheme, of_selection : the evaluators of the scheme and of its selection, if these learn
    beta : 1 / T
    random : random numbers of this iteration, by point
    phase : starts the clock of a named phase
    """

    evaluator: Evaluator
    of_scheme: Collector | None
    of_selection: Collector | None
    beta: float
    random: Random
    phase: Callable[[str], None]


class Selection:
    """Preselection of candidate atoms for each point: by default those that the model prefers.

    A selection that learns is a ``Learner`` too. Its first stage uses the posteriors before this M-step.
    """

    def initial_point_states(self, points: int) -> PointStates:
        """Return the variational states of points before the first iteration."""
        return {}

    def select(self, context: Context, view: BlockView, point_states: PointStates, count: int) -> np.ndarray:
        """Return the ``count`` most promising atoms of each point in rising order, (n, count) int32."""
        return view.select(count)

    def new_point_states(
        self, context: Context, block: Block, posterior: Posterior, point_states: PointStates
    ) -> PointStates:
        """Return the variational states of points in the training data after an iteration."""
        return {}


class Scheme(ABC):
    """The choice of the states K_n that are considered for each point.

    Attributes
    ----------
    needs : classes and protocols that the view of a model must have
    count : number of states that are considered for a point
    most : largest number of active atoms in them
    candidates : number of preselected atoms of a point; 0 without preselection
    words : description for people
    draws : whether posteriors are drawn, by random numbers that depend on the number of a point
    pairs : number of pairs of candidates that may both be active in a state of a point; 0 if states have other atoms
    rounds : number of searches for states of a new point
    selection : its preselection
    row_independent : whether the posterior of a point has the same bits whatever points are computed with it
    """

    Options: ClassVar[type[Section]]
    needs: ClassVar[tuple[type, ...]] = (EnumeratingView,)
    draws: ClassVar[bool] = False
    count: int
    most: int
    candidates: int
    words: str
    pairs: int = 0
    rounds: int = 1
    selection: Selection = Selection()
    row_independent: bool = False

    @abstractmethod
    def __init__(self, options: Any, latents: Latents) -> None: ...

    def initial_point_states(self, points: int) -> PointStates:
        """Return the variational states of points before the first iteration."""
        return {}

    @abstractmethod
    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        """Return the posterior of a block and its new variational states. The same call gives the same bits."""


def vacant_point_states(scheme: Scheme, points: int) -> PointStates:
    """Return the variational states of points, of the scheme and its selection, before the first iteration."""
    return {**scheme.initial_point_states(points), **scheme.selection.initial_point_states(points)}


def learners_of(scheme: Scheme) -> dict[str, Learner]:
    """Return the scheme and its selection by name, if they learn."""
    return {
        name: one for name, one in (("scheme", scheme), ("selection", scheme.selection)) if isinstance(one, Learner)
    }


def initial_params_of(scheme: Scheme, points: int, dims: int) -> Params:
    """Return the parameters of the scheme and its selection before the first iteration."""
    learners = learners_of(scheme).values()
    return {name: value for one in learners for name, value in one.initial_params(points, dims).items()}


def suits(model: type[Model], scheme: type[Scheme]) -> bool:
    """Return whether a model has what a scheme needs."""
    return all(issubclass(model.View, need) for need in scheme.needs)
