"""How well a run has recovered the causes behind its data, where these are known (ET App. E)."""

from dataclasses import dataclass

import numpy as np

from parallel_et.core.contract import Block, Model, Params, Scheme
from parallel_et.core.expectation import at_rest
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


def causes_of(truth: Params) -> np.ndarray:
    """The causes behind the data, each alone, as points; (D, b)."""
    if "T" not in truth:
        return truth["W"]
    return (truth["W"][:, None] * truth["T"]).reshape(-1, truth["W"].shape[1])


def recovery(model: Model, scheme: Scheme, params: Params, causes: np.ndarray) -> Recovery:
    """Show each cause (D, b) alone and without noise: the unit most probable to be active alone represents it.

    An atom stands for the cause that it is of.
    """
    step, block = at_rest(model, scheme, params), Block(pad_rows(causes.T), model.D, 0)
    logs = np.where(scheme.alone(step, block), model.log_singles(step.ready, block), -np.inf)
    unit = model.latents.owners[logs.argmax(1)]
    mae = np.abs(model.pictures(params)[:, unit] - causes).mean(0)
    closeness = CLOSE * np.abs(causes).max() / 10
    own = np.bincount(unit, minlength=model.H)[unit] == 1
    return Recovery(unit, own & (mae < closeness), mae)
