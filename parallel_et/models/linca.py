"""Linear components analysis, also known as binary sparse coding (ET sec. 4.3)."""

import numpy as np

from parallel_et.kernels import select
from parallel_et.models.base import Summary, best
from parallel_et.models.linear import LinearModel, Ready, Seen
from parallel_et.rows import aligned

SINGLE = 2.0**-24
"""Relative error of rounding to single precision."""


class LinCA(LinearModel):
    """Fields of any sign that add up: y = W s + noise.

    Candidates are the causes whose fields point along y: S_h = W_h . y / |W_h| (ET eq. 33).
    """

    aliases = ("bsc",)

    def initial_fields(self, summary: Summary) -> tuple[float, float]:
        return 0.0, summary.rms / 3 or 1.0

    def observe(self, ready: Ready, Y: np.ndarray, singletons: bool) -> Seen:
        if singletons:
            return super().observe(ready, Y, True)
        norms, units = np.empty(len(Y)), aligned(Y.shape, np.float32)
        select.unit_rows(Y, norms, units)
        return self.seen(ready, Y, norms, units=units)

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        if seen.units is None:
            return best(seen.product / ready.lengths, count)
        # between vectors of length 1 a product in single precision is wrong by (D + 4) roundings at most
        slack = 2.02 * (self.width + 4) * SINGLE
        candidates = np.empty((len(seen.Y), count), np.int32)
        cosines = seen.units @ ready.units.T
        select.along(cosines, slack, seen.norms, seen.Y, ready.WT, 1 / ready.lengths, candidates)
        return candidates


MODEL = LinCA
