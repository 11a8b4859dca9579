"""Recovery of the causes of artificial data, for which the true causes are known (ET App. E)."""

from dataclasses import dataclass
from math import isqrt

import numpy as np

from parallel_et.core.capabilities import SomeSingletons, cause_images_of
from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Block, Params
from parallel_et.em.e_step import inference_context
from parallel_et.kernels.rows import pad_rows

FOUND_ERROR = 1.0
"""Largest mean absolute error of a found cause, for causes of magnitude 10."""


@dataclass(frozen=True)
class Recovery:
    """The field that represents each of b true causes.

    Attributes
    ----------
    unit : (b,) field of each cause
    found : (b,) bool, the field represents only this cause, with a small error
    mae : (b,) mean absolute error between cause and field
    """

    unit: np.ndarray
    found: np.ndarray
    mae: np.ndarray

    @property
    def complete(self) -> bool:
        """True if all causes are found, each by its own field."""
        return bool(self.found.all())

    def __str__(self) -> str:
        count, found = len(self.found), int(self.found.sum())
        how = "all" if found == count else f"{found} of"
        error = f", mean absolute error {self.mae[self.found].mean():.3f}" if found else ""
        return f"{how} {count} causes found{error}"


def causes_of(truth: Params, dims: int) -> np.ndarray:
    """Return the true causes of data with ``dims`` dimensions, each as a point, (D, b).

    Objects with positions are shown at the upper left of a square image.
    """
    if "T" not in truth:
        return truth["W"]
    W, T = truth["W"], truth["T"]
    if len(T) < len(W):
        return (W[:, None] * T).reshape(-1, W.shape[1])
    size, channels = isqrt(len(W)), len(T) // len(W)
    side = isqrt(dims // channels)
    images = np.zeros((side, side, channels, W.shape[1]))
    images[:size, :size] = W.reshape(size, size, 1, -1) * T.reshape(size, size, channels, -1)
    return images.reshape(dims, -1)


def recovery(model: Model, scheme: Scheme, params: Params, causes: np.ndarray) -> Recovery:
    """Return the field that represents each true cause (D, b).

    Each cause is shown alone and without noise. The unit with the largest probability to be active alone represents it.
    For causes with positions, the error is computed at the inferred position, over the nonzero pixels of the cause.
    """
    step, block = inference_context(model, scheme, params), Block(pad_rows(causes.T), model.D, 0)
    logs = step.evaluator.observe(block, singletons=True).log_singletons()
    if isinstance(scheme, SomeSingletons):
        logs[~scheme.single_atoms(step, block)] = -np.inf
    atom = logs.argmax(1)
    unit = model.latents.owners[atom]
    if model.grid is None:
        mae = np.abs(cause_images_of(model, params)[:, unit] - causes).mean(0)
    else:
        placed = model.mean(params, atom[:, None].astype(np.int32)).T
        mae = errors_of_fields(placed, causes)
    own = np.bincount(unit, minlength=model.H)[unit] == 1
    return Recovery(unit, own & (mae < error_limit(causes)), mae)


def objects_by_cause(
    model: Model, scheme: Scheme, params: Params, objects: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which causes represent which object (D, b), bool (b, H), and the inferred positions (b, H, 2).

    A cause represents its most similar object, if its error is that of a found cause. Several causes may represent
    the same object.
    """
    assert model.grid is not None
    step, block = inference_context(model, scheme, params), Block(pad_rows(objects.T), model.D, 0)
    logs = step.evaluator.observe(block, singletons=True).log_singletons()
    place = logs.reshape(len(block), -1, model.H).argmax(1)  # most probable position of each cause
    shown = model.mean(params, (place * model.H + np.arange(model.H))[..., None].astype(np.int32))
    errors = errors_of_fields(np.moveaxis(shown, -1, 0), objects[..., None])
    represents = (errors == errors.min(0)) & (errors < error_limit(objects))
    return represents, np.stack(np.divmod(place, model.grid[1]), -1)


def errors_of_fields(fields: np.ndarray, causes: np.ndarray) -> np.ndarray:
    """Return the mean absolute error of fields (D, ...) over the non-zero values of causes (D, ...)."""
    return np.abs(fields - causes).sum(0) / np.maximum(1, (causes != 0).sum(0))


def error_limit(causes: np.ndarray) -> float:
    """Return the largest mean absolute error of a found cause, for causes of this magnitude."""
    return FOUND_ERROR * float(np.abs(causes).max()) / 10
