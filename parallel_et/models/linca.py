"""Linear components analysis (LinCA), also known as binary sparse coding (BSC): causes add up, with Gaussian noise.

    p(s) = prod_h pi^s_h (1 - pi)^(1 - s_h),    p(y | s) = Gauss(y; W s, sigma^2 I)

The model suits data in which the same patterns of any sign occur with a fixed strength: bars, image patches, sounds.
See ET sec. 4.3.
"""

from functools import cached_property
from typing import ClassVar

import numpy as np

from parallel_et.core.latent_states import best_atoms
from parallel_et.core.types import Params, Settings
from parallel_et.kernels import select
from parallel_et.kernels.rows import aligned
from parallel_et.models.components.linear import LinearEvaluator, LinearModel, LinearView

SINGLE_PRECISION_ROUNDING = 2.0**-24
"""Relative error of rounding to single precision."""


class LinCAEvaluator(LinearEvaluator):
    """LinCA with its parameters bound.

    Attributes
    ----------
    lengths : (H,) lengths of the fields; 1 for fields of zeros
    """

    def __init__(self, model: "LinCA", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        self.lengths = np.sqrt(self.squares)
        self.lengths[self.lengths == 0] = 1.0
        self._shared = settings.algebra.unit_rows(self.WT) if model.distributed else None

    @cached_property
    def units(self) -> np.ndarray:
        """Fields of length 1 in single precision, (H, width)."""
        return (self.WT / self.lengths[:, None]).astype(np.float32) if self._shared is None else self._shared


class LinCAView(LinearView):
    """A block of points under LinCA."""

    evaluator: LinCAEvaluator

    @cached_property
    def norms(self) -> np.ndarray:
        return super().norms if self.singletons else self.lengths_and_units[0]

    @cached_property
    def lengths_and_units(self) -> tuple[np.ndarray, np.ndarray]:
        """Squared lengths |y_n|^2 (n,), and the points at length 1 in single precision (n, width)."""
        Y = self.block.rows
        norms, units = np.empty(len(Y)), aligned(Y.shape, np.float32)
        select.unit_rows(Y, norms, units)
        return norms, units

    def select(self, count: int) -> np.ndarray:
        by = self.evaluator
        if self.singletons:
            return best_atoms(self.product / by.lengths, count)
        # a product of vectors of length 1 in single precision has an error of at most (D + 4) roundings
        slack = 2.02 * (self.model.width + 4) * SINGLE_PRECISION_ROUNDING
        candidates = np.empty((len(self), count), np.int32)
        norms, units = self.lengths_and_units
        select.largest_projections(units @ by.units.T, slack, norms, self.block.rows, by.WT, 1 / by.lengths, candidates)
        return candidates


class LinCA(LinearModel):
    """Fields of any sign that add up, y = W s + noise.

    The candidates are the causes whose fields point most in the direction of y: S_h = W_h . y / |W_h| (ET eq. 33).
    """

    View: ClassVar[type[LinearView]] = LinCAView
    first_job = {"data": {"negative": 0.5}}
    row_independent = True

    def evaluator(self, params: Params, settings: Settings) -> LinCAEvaluator:
        return LinCAEvaluator(self, params, settings)


MODEL = LinCA
