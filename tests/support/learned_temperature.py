"""Expectation truncation with a learned temperature, which follows the mean evidence of the points."""

from typing import NamedTuple

import numpy as np

from parallel_et.core.scheme import TrainablePart
from parallel_et.core.types import Param, Statistic
from parallel_et.schemes.et import ExpectationTruncation


class Surprise(NamedTuple):
    """The warmth of an iteration, which collects the surprise of the points."""

    warmth: float

    def collect(self, stage, block, posterior, used, total):
        total.add("surprise", (1 / (1 + np.abs(posterior.evidence[used]))).sum())


class Learning(ExpectationTruncation, TrainablePart):
    """A scheme with a parameter, a sum over points and an M-step of its own."""

    params = {"warmth": Param("", "factor of the temperature")}
    stages = ("warmth",)

    def initial_params(self, points, dims):
        return {"warmth": np.array(1.5)}

    def evaluator(self, params, settings):
        return Surprise(float(params["warmth"]))

    def infer(self, context, block, kept):
        return super().infer(context._replace(beta=context.beta / context.scheme_evaluator.warmth), block, kept)

    def statistics(self, stage):
        return {"surprise": Statistic((), 1.0)}

    def maximise(self, stage, params, sums, settings, summary):
        return {"warmth": 1.0 + sums["surprise"] / sums["points"]}


SCHEME = Learning
