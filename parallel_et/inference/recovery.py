"""How well a run has recovered the causes behind its data, where these are known (ET App. E)."""

from dataclasses import dataclass
from math import isqrt

import numpy as np

from parallel_et.core.capabilities import SomeSingles, pictures_of
from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Block, Params
from parallel_et.em.e_step import context_at_rest
from parallel_et.kernels.rows import pad_rows

CLOSE = 1.0
"""Largest mean absolute error of a field that counts as found, for causes of magnitude 10."""


@dataclass(frozen=True)
class Recovery:
    """Which cause is represented by which field.

    Attributes
    ----------
    unit : (b,) the field that represents each cause
    found : (b,) bool, whether it does so alone and closely
    mae : (b,) mean absolute error between each cause and its field
    """

    unit: np.ndarray
    found: np.ndarray
    mae: np.ndarray

    @property
    def complete(self) -> bool:
        """All causes found, each by a field of its own."""
        return bool(self.found.all())

    def __str__(self) -> str:
        count, found = len(self.found), int(self.found.sum())
        how = "all" if found == count else f"{found} of"
        error = f", mean absolute error {self.mae[self.found].mean():.3f}" if found else ""
        return f"{how} {count} causes found{error}"


def causes_of(truth: Params, dims: int) -> np.ndarray:
    """The causes behind the data of so many dimensions, each alone, as points; (D, b).

    Objects that stand anywhere, with a feature for each of their pixels, are at the upper left of a square image.
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
    """Show each cause (D, b) alone and without noise: the unit most probable to be active alone represents it.

    An atom stands for the cause that it is of. Where causes stand at places, it is looked at where it is found, and the
    error is that of the values that are not zero.
    """
    step, block = context_at_rest(model, scheme, params), Block(pad_rows(causes.T), model.D, 0)
    logs = step.evaluator.observe(block, singles=True).log_singles()
    if isinstance(scheme, SomeSingles):
        logs[~scheme.single_atoms(step, block)] = -np.inf
    atom = logs.argmax(1)
    unit = model.latents.owners[atom]
    if model.grid is None:
        mae = np.abs(pictures_of(model, params)[:, unit] - causes).mean(0)
    else:
        there = model.mean(params, atom[:, None].astype(np.int32)).T
        mae = errors_there(there, causes)
    own = np.bincount(unit, minlength=model.H)[unit] == 1
    return Recovery(unit, own & (mae < close(causes)), mae)


def causes_for(model: Model, scheme: Scheme, params: Params, objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which causes (b, H) stand for which object (D, b), and where (b, H, 2): more than one if a cause has a twin.

    A cause stands for the object that it is most like, if it is as like it as what counts as found.
    """
    assert model.grid is not None
    step, block = context_at_rest(model, scheme, params), Block(pad_rows(objects.T), model.D, 0)
    logs = step.evaluator.observe(block, singles=True).log_singles()
    place = logs.reshape(len(block), -1, model.H).argmax(1)  # the best place of each cause
    alone = model.mean(params, (place * model.H + np.arange(model.H))[..., None].astype(np.int32))
    errors = errors_there(np.moveaxis(alone, -1, 0), objects[..., None])
    like = (errors == errors.min(0)) & (errors < close(objects))
    return like, np.stack(np.divmod(place, model.grid[1]), -1)


def errors_there(fields: np.ndarray, causes: np.ndarray) -> np.ndarray:
    """Mean absolute error of fields (D, ...) at their places, over the values of causes (D, ...) that are not zero."""
    return np.abs(fields - causes).sum(0) / np.maximum(1, (causes != 0).sum(0))


def close(causes: np.ndarray) -> float:
    """The error below which a field is one of these causes."""
    return CLOSE * float(np.abs(causes).max()) / 10
