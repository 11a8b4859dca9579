"""Capabilities that only some models and schemes have: protocols, asked for with ``isinstance``, and their defaults."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from parallel_et.core.latent_states import Latents, in_lists
from parallel_et.core.model import Model, shape_of
from parallel_et.core.scheme import Context, Scheme
from parallel_et.core.types import Block, Params, Settings, Summary, Totals
from parallel_et.errors import UserError

# the M-step


@runtime_checkable
class OptionalStages(Protocol):
    """A trainable whose iterations do not always have all stages."""

    def has_stage(self, stage: str, settings: Settings) -> bool:
        """Return whether an iteration has a stage; it always has the first."""


@runtime_checkable
class RelativeStatistics(Protocol):
    """A trainable with statistics that are relative to its parameters, which minibatches average over M-steps."""

    def carried(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        """Return sums collected under the parameters ``old`` as they are under ``new``."""


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

        ``before`` are the parameters at the start of the iteration, ``earlier`` the sums of the first stage.
        """


@runtime_checkable
class OwnUsage(Protocol):
    """A model that measures the use of its causes otherwise than by the statistics ``active`` or ``ss``."""

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
    """A model with a parameter that one number fills otherwise than evenly."""

    def filled(self, name: str, value: float) -> np.ndarray:
        """Return a parameter that begins with one number."""


def filled(model: Model, name: str, value: float) -> np.ndarray:
    """Return a parameter that begins with one number."""
    return model.filled(name, value) if isinstance(model, OwnFill) else np.full(shape_of(model, name), value)


@runtime_checkable
class InitialisedFromPoints(Protocol):
    """A model that turns points of the data into initial fields; by default a point is a field."""

    def fields_from_points(self, points: np.ndarray) -> np.ndarray:
        """Return initial fields from points as columns (D, m)."""


@runtime_checkable
class ManyPoints(Protocol):
    """A model that makes its initial fields of more points than it has causes."""

    def points_for_fields(self) -> int:
        """Return the number of points."""


@runtime_checkable
class InitialisedFromDirections(Protocol):
    """A model whose causes do not add up, which makes its fields of skewed directions in its own way."""

    def fields_from_directions(self, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
        """Return fields (D, m) from those of causes that add up, some points (n, D), and their coordinates (n, m)."""


def fields_from_directions(model: Model, fields: np.ndarray, points: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return the fields (D, m) of causes along skewed directions of points (n, D) with coordinates (n, m)."""
    if isinstance(model, InitialisedFromDirections):
        return model.fields_from_directions(fields, points, along)
    return fields


@runtime_checkable
class InitialisedWithMoments(Protocol):
    """A model with other initial values for numbers if its fields begin with moments of the data."""

    def values_with_moments(self, probability: float, summary: Summary) -> dict[str, float]:
        """Return initial values of parameters without a value in the job; ``probability`` is that of a cause."""


@runtime_checkable
class Restartable(Protocol):
    """A model that improves on the fields that ``anneal.renew`` proposes."""

    def propose_fields(
        self, params: Params, fields: np.ndarray, points: np.ndarray, rest: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return missing fields (D, m), best first, and the free energy that each gains (m,), if that is known.

        ``fields`` (D, k) are those found in the residuals ``rest`` (n, D) of some points (n, D).
        """

    def release_fields(self, W: np.ndarray, points: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return the fields (D, H) without values that hold learning back; ``active`` (n, atoms) are probabilities."""


@runtime_checkable
class KeysInArrays(Protocol):
    """A model with keys of [model] that follow from parameters in a file."""

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        """Return these keys."""


# pictures and reports


@runtime_checkable
class OwnPictures(Protocol):
    """A model whose causes alone do not look like their fields."""

    def pictures(self, params: Params) -> np.ndarray:
        """Return each cause alone, as a point, (D, H)."""


def pictures_of(model: Model, params: Params) -> np.ndarray:
    """Return each cause alone, as a point, (D, H)."""
    return model.pictures(params) if isinstance(model, OwnPictures) else params["W"]


@runtime_checkable
class Decodes(Protocol):
    """A model with a closed form of the mean of y for independent causes."""

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        """Return the mean of y, (n, D), of atoms that are active with these probabilities (n, atoms)."""


def decode(model: Model, params: Params, active: np.ndarray) -> np.ndarray:
    """Return the mean of y, (n, D), of atoms that are active independently with these probabilities (n, atoms).

    By default it is the mean of the most probable state.
    """
    if isinstance(model, Decodes):
        return model.decode(params, active)
    state, atom = np.nonzero(active > 0.5)
    return model.mean(params, in_lists(state, atom, len(active)))


@runtime_checkable
class KnownCost(Protocol):
    """A model with a measured cost of its E-step."""

    def nanoseconds(self, states: int) -> float:
        """Return the rough time of an iteration for a point with this number of states."""


def nanoseconds_of(model: Model, states: int) -> float:
    """Return the rough time of an iteration for a point with this number of states."""
    return model.nanoseconds(states) if isinstance(model, KnownCost) else 20.0 * model.D * states


# schemes


@runtime_checkable
class Preselects(Protocol):
    """A scheme whose candidates are not in its posteriors."""

    def candidates_of(self, context: Context, block: Block) -> np.ndarray:
        """Return the candidates (n, H') of new points."""


@runtime_checkable
class SomeSingles(Protocol):
    """A scheme that considers only some atoms as the single active one."""

    def single_atoms(self, context: Context, block: Block) -> np.ndarray:
        """Return which atoms these are, (n, atoms) bool."""


@runtime_checkable
class Extensible(Protocol):
    """A scheme that can consider states with one more active atom."""

    def extended(self, latents: Latents, most: int) -> Scheme | None:
        """Return the scheme with one more active atom; None if it would have more than ``most`` states."""
