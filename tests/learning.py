"""Expectation truncation whose temperature is learned: it follows the mean evidence of the points."""

import numpy as np

from parallel_et.core.contract import Param, Sum
from parallel_et.schemes.et import ExpectationTruncation


class Learning(ExpectationTruncation):
    """A scheme with a parameter, a sum over points and an M-step of its own."""

    params = {"warmth": Param("", "what the temperature is multiplied with")}
    stages = ("warmth",)

    def initial(self):
        return {"warmth": np.array(1.5)}

    def prepare(self, params, knobs):
        return float(params["warmth"])

    def infer(self, step, block, kept):
        return super().infer(step._replace(beta=step.beta / step.guide), block, kept)

    def sums(self, stage):
        return {"surprise": Sum((), 1.0)}

    def collect(self, stage, ready, block, posterior, used, total):
        total.add("surprise", (1 / (1 + np.abs(posterior.evidence[used]))).sum())

    def maximise(self, stage, params, sums, knobs, summary):
        return {"warmth": 1.0 + sums["surprise"] / sums["points"]}


SCHEME = Learning
