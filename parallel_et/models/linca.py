"""Linear components analysis, also known as binary sparse coding (ET sec. 4.3)."""

from dataclasses import replace

import numpy as np

from parallel_et.core.contract import Block, Knobs, Params
from parallel_et.core.states import best
from parallel_et.kernels import select
from parallel_et.kernels.rows import aligned
from parallel_et.models.parts.linear import LinearModel, Ready, Seen

SINGLE = 2.0**-24
"""Relative error of rounding to single precision."""


class LinCA(LinearModel):
    """Fields of any sign that add up: y = W s + noise.

    Candidates are the causes whose fields point along y: S_h = W_h . y / |W_h| (ET eq. 33).
    """

    first_job = {"data": {"negative": 0.5}}
    alike = True

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        ready, deal = super().prepare(params, knobs), knobs.deal
        if not self.dealt:
            return ready
        units, squares = deal.room("units", ready.WT.shape, np.float32), np.empty(self.H)

        def shorten(first: int, last: int) -> None:
            select.unit_rows(ready.WT[first:last], squares[first:last], units[first:last])

        deal.here(self.H, shorten)
        return replace(ready, in_single=units)

    def observe(self, ready: Ready, block: Block, singles: bool) -> Seen:
        if singles:
            return super().observe(ready, block, True)
        Y = block.rows
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
