"""What is to be learned, and where a run stands."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from parallel_et.core.contract import Kept, Knobs, Learner, Model, Params, Scheme, Summary, Totals
from parallel_et.core.plan import Plan
from parallel_et.errors import UserError
from parallel_et.kernels.rows import Rows
from parallel_et.parallel.shard import Shard
from parallel_et.parallel.sums import ExactSum
from parallel_et.parallel.team import Team


@dataclass(frozen=True)
class Problem:
    """What is to be learned: a model, by a scheme and a plan, from this rank's rows (n, D or wider).

    ``kept`` is what the scheme keeps of each of them between iterations, arrays (n, ...); ``mean`` (D,) is what was
    subtracted from each of them, if anything.
    """

    model: Model
    scheme: Scheme
    plan: Plan
    shard: Shard
    rows: Rows
    summary: Summary
    seed: int
    team: Team
    kept: Kept = field(default_factory=dict)
    mean: np.ndarray | None = None
    _sums: dict[tuple[Learner, str], list[ExactSum]] = field(default_factory=dict)

    def passes(self) -> Iterator[tuple[Learner, str]]:
        """The stages of the M-step: those of the model, then those of a scheme that learns."""
        for learner in (self.model, self.scheme):
            for stage in learner.stages:
                yield learner, stage

    def sums(self, learner: Learner, stage: str, params: Params) -> list[ExactSum]:
        """Where each thread of the team adds up the statistics of a stage, empty; always the same memory."""
        declared = learner.sums(stage)
        if (learner, stage) not in self._sums:
            shapes = {name: one.shape for name, one in declared.items()}
            self._sums[learner, stage] = [ExactSum(shapes) for _ in range(self.team.size)]
        bounds = {
            name: one.bound if isinstance(one.bound, float) else one.bound(params, self.summary)
            for name, one in declared.items()
        }
        for total in self._sums[learner, stage]:
            total.reset(bounds, self.shard.points, self.shard.block)
        return self._sums[learner, stage]

    def maximise(self, learner: Learner, stage: str, params: Params, sums: Totals, knobs: Knobs) -> Params:
        """The parameters after a stage of the M-step; those of the model change only if the job has them learned."""
        new = learner.maximise(stage, params, sums, knobs, self.summary)
        for name, value in new.items():
            if name not in params or np.shape(value) != params[name].shape:
                expected = f"the shape {params[name].shape}" if name in params else f"some of {', '.join(params)}"
                found = np.shape(value) if name in params else name
                raise UserError(f"{type(learner).__name__}.maximise: {name}: expected {expected}, found {found}")
        fixed = set(self.model.params) - set(self.model.options.learn)
        return {**params, **{name: value for name, value in new.items() if name not in fixed}}


@dataclass(frozen=True)
class Position:
    """Where a run stands between two iterations: with the problem, all that the next one needs.

    Attributes
    ----------
    iteration : number of iterations done
    params : what they have learned
    calm : how many of the last ones in a row have changed the parameters but little
    """

    iteration: int
    params: Params
    calm: int = 0
