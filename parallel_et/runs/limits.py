"""Limits of double precision that act on a result: reported at the end of a run, and stored in it."""

import numpy as np

from parallel_et.core.contract import Params
from parallel_et.core.problem import Problem

CLOSE = 1e-8
"""Rounding error of a log joint, in nats, from which on it is reported."""


def limits(problem: Problem, params: Params, evidence: float) -> str:
    """Return the floors and limits that act on the parameters, in one line; empty if there are none.

    ``evidence`` is the mean log evidence of a point.
    """
    clauses = [*problem.model.at_limits(params, problem.summary)]
    rounding = abs(evidence) * float(np.finfo(float).eps)
    if rounding > CLOSE:
        learned = ", ".join(problem.model.options.learn)
        clauses.append(
            f"the evidence of a point is {evidence:.3g}, so far is the model from the data: log joints are exact to "
            f"{rounding:.1g} nats, as are the posterior and what is learned from it: {learned}"
        )
    return "; ".join(clauses)
