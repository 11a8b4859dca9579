"""Expectation truncation at a temperature of each block's own, which follows what is kept of its points, and chance."""

import numpy as np

from parallel_et.schemes.et import ETOptions, ExpectationTruncation


class MoodyOptions(ETOptions):
    """The keys of [inference]."""


class Moody(ExpectationTruncation):
    """What is kept of a point changes once an iteration, however often it is inferred."""

    Options = MoodyOptions

    def initial_point_states(self, points):
        return {"mood": np.zeros(points), "visits": np.zeros((points, 3), np.int16)}

    def infer(self, context, block, kept):
        posterior, _ = super().infer(context._replace(beta=context.beta / (1 + kept["mood"].mean())), block, {})
        chance = context.random.uniforms("mood", block.first, (len(block), 3))[:, 2]
        visits = kept["visits"].copy()
        visits[:, 1] += 1
        mood = 0.5 * kept["mood"] + chance / (1 + np.abs(posterior.evidence))
        return posterior, {"mood": mood, "visits": visits}


SCHEME = Moody
