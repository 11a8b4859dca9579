"""Linear components analysis, also known as binary sparse coding (ET sec. 4.3)."""

import numpy as np

from parallel_et.models.base import Summary
from parallel_et.models.linear import LinearModel, Ready, Seen


class LinCA(LinearModel):
    """Fields of any sign that add up: y = W s + noise.

    Candidates are the causes whose fields point along y: S_h = W_h . y / |W_h| (ET eq. 33).
    """

    aliases = ("bsc",)

    def initial_fields(self, summary: Summary) -> tuple[float, float]:
        return 0.0, summary.rms / 3 or 1.0

    def scores(self, ready: Ready, seen: Seen) -> np.ndarray:
        length = np.sqrt(np.diag(ready.gram))
        return seen.product / np.where(length > 0, length, 1.0)


MODEL = LinCA
