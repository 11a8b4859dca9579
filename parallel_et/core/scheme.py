"""The contract between the engine and the schemes, which choose the states K_n that are considered for each point."""

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


class TrainablePart(Trainable):
    """A scheme or selection with trainable parameters."""

    @abstractmethod
    def initial_params(self, points: int, dims: int) -> Params:
        """Return the parameters before the first iteration."""


class Context(NamedTuple):
    """The values of an E-step that all blocks share.

    Attributes
    ----------
    evaluator : the model with its parameters bound
    scheme_evaluator, selection_evaluator : the evaluators of the scheme and of its selection, if they are trainable
    beta : 1 / T
    random : random numbers of this iteration, which depend on the index of a point and not on blocks or ranks
    phase : function that starts the timer of a named phase
    """

    evaluator: Evaluator
    scheme_evaluator: Collector | None
    selection_evaluator: Collector | None
    beta: float
    random: Random
    phase: Callable[[str], None]


class Selection:
    """The preselection of candidate atoms for each point, by default that of the model.

    A trainable selection is also a ``TrainablePart``.
    """

    def initial_point_states(self, points: int) -> PointStates:
        """Return the point states before the first iteration."""
        return {}

    def select(self, context: Context, view: BlockView, point_states: PointStates, count: int) -> np.ndarray:
        """Return the ``count`` best candidates of each point, sorted by index, (n, count) int32."""
        return view.select(count)

    def new_point_states(
        self, context: Context, block: Block, posterior: Posterior, point_states: PointStates
    ) -> PointStates:
        """Return the new point states of the selection; called in training only."""
        return {}


class Scheme(ABC):
    """A kind of E-step: chooses the states K_n of each point, and computes q_n and F_n on them.

    Point states are arrays that a scheme keeps for each point between iterations, for example K_n.

    Attributes
    ----------
    needs : classes and protocols that the view of a model must have
    count : number of states in K_n, without added singletons
    max_active : largest number of active atoms in a considered state
    candidates : number of preselected atoms per point; 0 without preselection
    description : description for log and report
    draws : whether posteriors are sampled, with random numbers that depend on the index of the point
    pairs : number of pairs of candidates that may both be active in a state; 0 if states have other atoms too
    rounds : number of calls to ``infer`` for a point without point states, such as a held-out point
    selection : preselection of candidates
    row_independent : whether the posterior of a point is bit-identical in any block
    """

    Options: ClassVar[type[Section]]
    needs: ClassVar[tuple[type, ...]] = (EnumeratingView,)
    draws: ClassVar[bool] = False
    count: int
    max_active: int
    candidates: int
    description: str
    pairs: int = 0
    rounds: int = 1
    selection: Selection = Selection()
    row_independent: bool = False

    @abstractmethod
    def __init__(self, options: Any, latents: Latents) -> None: ...

    def initial_point_states(self, points: int) -> PointStates:
        """Return the point states before the first iteration."""
        return {}

    @abstractmethod
    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        """Return the posterior of a block and its new point states. Equal arguments give bit-identical results.

        A simple scheme calls ``context.evaluator.observe``, selects candidates, and calls ``over_table`` of the view.
        """


def initial_point_states_of(scheme: Scheme, points: int) -> PointStates:
    """Return the point states of the scheme and its selection before the first iteration."""
    return {**scheme.initial_point_states(points), **scheme.selection.initial_point_states(points)}


def trainable_parts(scheme: Scheme) -> dict[str, TrainablePart]:
    """Return the scheme and its selection by name, if they are trainable."""
    return {
        name: one
        for name, one in (("scheme", scheme), ("selection", scheme.selection))
        if isinstance(one, TrainablePart)
    }


def initial_params_of(scheme: Scheme, points: int, dims: int) -> Params:
    """Return the parameters of the scheme and its selection before the first iteration."""
    trainables = trainable_parts(scheme).values()
    return {name: value for one in trainables for name, value in one.initial_params(points, dims).items()}


def suits(model: type[Model], scheme: type[Scheme]) -> bool:
    """Return whether the view of a model provides the classes and protocols that a scheme needs."""
    return all(issubclass(model.View, need) for need in scheme.needs)
