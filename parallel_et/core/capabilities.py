"""Capabilities that only some models and schemes have: protocols for ``isinstance``, and their defaults."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from parallel_et.core.latent_states import Latents, states_of_pairs
from parallel_et.core.model import Model, shape_of
from parallel_et.core.scheme import Context, Scheme
from parallel_et.core.types import Block, Params, Settings, Summary, Totals
from parallel_et.errors import UserError

# the M-step


@runtime_checkable
class OptionalStages(Protocol):
    """A trainable that omits some stages in some iterations."""

    def has_stage(self, stage: str, settings: Settings) -> bool:
        """Return whether an iteration has a later stage. Every iteration has the first stage."""


@runtime_checkable
class RelativeStatistics(Protocol):
    """A trainable with statistics relative to its parameters, so that averages of minibatches must be converted."""

    def adjust_sums(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        """Convert sums that are relative to the parameters ``old`` into sums relative to ``new``."""


@runtime_checkable
class Revision(Protocol):
    """A model whose later stages revise the first one."""

    def revise(
        self,
        stage: str,
        params: Params,
        sums: Totals,
        settings: Settings,
        summary: Summary,
        before: Params,
        earlier: Totals,
    ) -> Params:
        """Return the parameters that a later stage changes.

        ``before`` contains the parameters at the start of the iteration, ``earlier`` the sums of the first stage.
        """


@runtime_checkable
class OwnUsage(Protocol):
    """A model that measures the use of its causes by other statistics than ``active`` and ``ss``."""

    def usage(self, sums: Totals) -> np.ndarray:
        """Return the weight of each cause in the sums of the first stage, (H,)."""


def usage_of(model: Model, sums: Totals) -> np.ndarray:
    """Return the weight of each cause in the sums of the first stage, (H,): ``active``, or the diagonal of ``ss``."""
    if isinstance(model, OwnUsage):
        return model.usage(sums)
    if "active" not in sums and "ss" not in sums:
        where, found = f"{type(model).__name__}.statistics", ", ".join(sums)
        raise UserError(f"{where}: expected active (H,) or ss (H, H), or a method usage, found {found}")
    return sums["active"] if "active" in sums else np.diag(sums["ss"])


# initial values


@runtime_checkable
class OwnFill(Protocol):
    """A model with a parameter whose initial elements differ even if the job gives one number."""

    def filled(self, name: str, value: float) -> np.ndarray:
        """Return the initial value of a parameter for one number in the job."""


def filled(model: Model, name: str, value: float) -> np.ndarray:
    """Return the initial value of a parameter for one number in the job."""
    return model.filled(name, value) if isinstance(model, OwnFill) else np.full(shape_of(model, name), value)


@runtime_checkable
class InitialisedFromPoints(Protocol):
    """A model that converts points of the data into initial fields. By default a point is a field."""

    def fields_from_points(self, points: np.ndarray) -> np.ndarray:
        """Return initial fields from points as columns (D, m)."""


@runtime_checkable
class ManyPoints(Protocol):
    """A model that needs more points than causes for its initial fields."""

    def points_for_fields(self) -> int:
        """Return the number of points."""


@runtime_checkable
class InitialisedFromDirections(Protocol):
    """A model whose causes do not add up. Its fields along skewed directions therefore differ from additive fields."""

    def fields_from_directions(self, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
        """Return fields (D, m) from additive fields (D, m), points (n, D), and their coordinates (n, m)."""


def fields_from_directions(model: Model, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return fields (D, m) along skewed directions.

    Parameters
    ----------
    fields : (D, m) additive fields
    points : (n, D)
    along : (n, m) coordinates of the points along the directions
    """
    if isinstance(model, InitialisedFromDirections):
        return model.fields_from_directions(fields, points, along)
    return fields


@runtime_checkable
class InitialisedWithMoments(Protocol):
    """A model with other initial values of scalar parameters if its fields are initialised with third moments."""

    def values_with_moments(self, probability: float, summary: Summary) -> dict[str, float]:
        """Return initial values for the probability of a cause. Values in the job take precedence."""


@runtime_checkable
class Restartable(Protocol):
    """A model that improves the fields that ``anneal.renew`` proposes."""

    def propose_fields(
        self, params: Params, fields: np.ndarray, points: np.ndarray, residuals: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return fields of causes that the model lacks, best first, (D, m), and the gains of free energy (m,) or None.

        Parameters
        ----------
        fields : (D, k) fields along skewed directions of the residuals
        points, residuals : (n, D) some points and their residuals
        """

    def release_fields(self, W: np.ndarray, points: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return fields (D, H) without values that block learning.

        Parameters
        ----------
        points : (n, D) some points
        active : (n, atoms) probabilities that the atoms are active
        """


@runtime_checkable
class KeysInArrays(Protocol):
    """A model with keys of [model] that follow from the shapes of its parameters."""

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        """Return the keys of [model] that parameters of a file determine."""


# pictures and reports


@runtime_checkable
class OwnCauseImages(Protocol):
    """A model in which the mean of a single cause differs from its field."""

    def cause_images(self, params: Params) -> np.ndarray:
        """Return the mean of each cause as the only active one, (D, H)."""


def cause_images_of(model: Model, params: Params) -> np.ndarray:
    """Return the mean of each cause as the only active one, (D, H)."""
    return model.cause_images(params) if isinstance(model, OwnCauseImages) else params["W"]


@runtime_checkable
class Decodes(Protocol):
    """A model with a closed form of the mean of y for independent causes."""

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        """Return the mean of y, (n, D), for atoms that are active with probabilities (n, atoms)."""


def decode(model: Model, params: Params, active: np.ndarray) -> np.ndarray:
    """Return the mean of y, (n, D), for atoms that are independently active with probabilities (n, atoms).

    The default is the mean of the most probable state.
    """
    if isinstance(model, Decodes):
        return model.decode(params, active)
    state, atom = np.nonzero(active > 0.5)
    return model.mean(params, states_of_pairs(state, atom, len(active)))


@runtime_checkable
class KnownCost(Protocol):
    """A model with a measured cost of its E-step."""

    def nanoseconds(self, states: int) -> float:
        """Return the approximate time per iteration for a point with this number of states, in ns."""


def nanoseconds_of(model: Model, states: int) -> float:
    """Return the approximate time per iteration for a point with this number of states, in ns."""
    return model.nanoseconds(states) if isinstance(model, KnownCost) else 20.0 * model.D * states


# schemes


@runtime_checkable
class Preselects(Protocol):
    """A scheme whose posteriors do not contain its candidates."""

    def candidates_of(self, context: Context, block: Block) -> np.ndarray:
        """Return the candidates (n, H') of new points."""


@runtime_checkable
class SomeSingletons(Protocol):
    """A scheme that considers only some of the single-atom states."""

    def single_atoms(self, context: Context, block: Block) -> np.ndarray:
        """Return a mask of the atoms that are considered as the only active one, (n, atoms) bool."""


@runtime_checkable
class Extensible(Protocol):
    """A scheme that can consider states with one more active atom."""

    def extended(self, latents: Latents, max_states: int) -> Scheme | None:
        """Return the scheme with one more active atom; None if it would have more than ``max_states`` states."""
