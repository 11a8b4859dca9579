"""A scheme for tests: the temperature of a block depends on random numbers and on the states of its points."""

import numpy as np

from parallel_et.schemes.et import ETOptions, ExpectationTruncation


class MoodyOptions(ETOptions):
    """The keys of [inference]."""


class Moody(ExpectationTruncation):
    """Expectation truncation whose point states change once an iteration, even if a point is inferred several times."""

    Options = MoodyOptions

    def initial_point_states(self, points):
        return {"mood": np.zeros(points), "visits": np.zeros((points, 3), np.int16)}

    def infer(self, context, block, point_states):
        posterior, _ = super().infer(context._replace(beta=context.beta / (1 + point_states["mood"].mean())), block, {})
        chance = context.random.uniforms("mood", block.first, (len(block), 3))[:, 2]
        visits = point_states["visits"].copy()
        visits[:, 1] += 1
        mood = 0.5 * point_states["mood"] + chance / (1 + np.abs(posterior.evidence))
        return posterior, {"mood": mood, "visits": visits}


SCHEME = Moody
