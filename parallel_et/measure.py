"""How well a run has recovered the causes behind its data, where these are known (ET App. E)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_et.models.base import Model, Params
from parallel_et.rows import pad_rows

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


def recovery(model: Model, scheme: Any, params: Params, causes: np.ndarray) -> Recovery:
    """Show each cause (D, b) alone and without noise: the unit most probable to be active alone represents it."""
    Y = pad_rows(causes.T)
    ready = model.prepare(params, model.at_rest(len(Y)))
    seen = model.observe(ready, Y, scheme.singletons)
    alone = model.log_singletons(ready, seen)
    if not scheme.singletons and scheme.candidates < model.H:
        outside = np.ones(alone.shape, bool)
        np.put_along_axis(outside, model.select(ready, seen, scheme.candidates), False, 1)
        alone[outside] = -np.inf
    unit = alone.argmax(1)
    mae = np.abs(params.W[:, unit] - causes).mean(0)
    closeness = CLOSE * np.abs(causes).max() / 10
    own = np.bincount(unit, minlength=model.H)[unit] == 1
    return Recovery(unit, own & (mae < closeness), mae)
