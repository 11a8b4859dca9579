"""What is to be learned, and where a run stands."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from parallel_et.core.contract import Kept, Knobs, Learner, Model, Params, Scheme, Summary, Totals
from parallel_et.core.plan import Plan
from parallel_et.errors import UserError
from parallel_et.kernels.rows import Rows
from parallel_et.parallel.deal import Deal, alone
from parallel_et.parallel.shard import Shard
from parallel_et.parallel.sums import ExactSum
from parallel_et.parallel.team import Team


class Holdout(NamedTuple):
    """Points that are not learned from: this rank's rows (n, D or wider) of them, looked at after so many iterations.

    That is after each, with batches after each pass; and where a scheme searches for the states of a new point in
    several rounds, after as many: so that it costs about what learning from as many points would.
    """

    shard: Shard
    rows: Rows
    every: int


@dataclass(frozen=True)
class Problem:
    """What is to be learned: a model, by a scheme and a plan, from this rank's rows (n, D or wider).

    ``kept`` is what the scheme keeps of each of them between iterations, arrays (n, ...); ``mean`` (D,) is what was
    subtracted from each of them, if anything; ``held`` are points that are not learned from; ``averages``, on the root,
    are the averaged sums of each stage, if the M-step has the points in batches.
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
    held: Holdout | None = None
    averages: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    _sums: dict[tuple[Learner, str], list[ExactSum]] = field(default_factory=dict)

    @property
    def learners(self) -> dict[str, Learner]:
        """The model, and the scheme and its selection, which may learn as well."""
        return {"model": self.model, "scheme": self.scheme, "selection": self.scheme.selection}

    def passes(self, knobs: Knobs | None = None) -> Iterator[list[tuple[Learner, str]]]:
        """The stages of the M-step, or those that an iteration has, by the passes over the posteriors that they take.

        The first has the first stage of all; then come the others, those of the model first.
        """
        yield [(learner, learner.stages[0]) for learner in self.learners.values() if learner.stages]
        for learner in self.learners.values():
            for stage in learner.stages[1:]:
                if knobs is None or learner.takes(stage, knobs):
                    yield [(learner, stage)]

    def sums(self, learner: Learner, stage: str, params: Params, deal: Deal = alone) -> list[ExactSum]:
        """Where each thread of the team adds up the statistics of a stage, empty; always the same memory.

        The first one does so in a room, if all ranks do the M-step.
        """
        declared = learner.sums(stage)
        if (learner, stage) not in self._sums:
            shapes = {name: one.shape for name, one in declared.items()}
            first = ExactSum(shapes, deal if self.dealt(learner) else alone)
            self._sums[learner, stage] = [first, *(ExactSum(shapes) for _ in range(1, self.team.size))]
        bounds = {
            name: one.bound if isinstance(one.bound, float) else one.bound(params, self.summary)
            for name, one in declared.items()
        }
        for total in self._sums[learner, stage]:
            total.reset(bounds, self.shard.points, self.shard.block)
        return self._sums[learner, stage]

    def dealt(self, learner: Learner) -> bool:
        """Whether all ranks do the M-step; averages of batches are the root's."""
        return learner.dealt and self.plan.batches.count == 1

    def average(self, learner: Learner, stage: str, sums: Totals, knobs: Knobs) -> Totals:
        """The sums of a batch as those of all points, averaged with earlier ones (Cappé and Moulines 2009)."""
        batches = self.plan.batches
        if batches.count == 1 or learner.online:
            return sums
        share, place = batches.points / batches.size(knobs.iteration), self._place(learner, stage)
        new = {name: share * values for name, values in sums.items()}
        if old := self.averages.get(place):
            new = {name: old[name] + knobs.step * (values - old[name]) for name, values in new.items()}
        self.averages[place] = new
        return new

    def carry(self, old: Params, new: Params) -> None:
        """From now on the averages, which were of the parameters ``old``, are of ``new``."""
        for learner, stage in chain.from_iterable(self.passes()):
            if sums := self.averages.get(place := self._place(learner, stage)):
                self.averages[place] = {**sums, **learner.carried(stage, sums, old, new)}

    def _place(self, learner: Learner, stage: str) -> str:
        return f"{next(kind for kind, one in self.learners.items() if one is learner)} {stage}"

    def maximise(
        self,
        learner: Learner,
        stage: str,
        params: Params,
        sums: Totals,
        knobs: Knobs,
        before: Params | None = None,
        earlier: Totals | None = None,
    ) -> Params:
        """The parameters after a stage of the M-step; those of the model change only if the job has them learned.

        ``before`` the iteration, and the sums of the ``earlier`` stage, if the learner has had one.
        """
        if before is None or earlier is None:
            new = learner.maximise(stage, params, sums, knobs, self.summary)
        else:
            new = learner.revise(stage, params, sums, knobs, self.summary, before, earlier)
        for name, value in new.items():
            if name not in params or np.shape(value) != params[name].shape:
                expected = f"the shape {params[name].shape}" if name in params else f"some of {', '.join(params)}"
                found = np.shape(value) if name in params else name
                raise UserError(f"{type(learner).__name__}.maximise: {name}: expected {expected}, found {found}")
        new = {name: value.copy() if in_any(value, sums) else value for name, value in new.items()}
        fixed = set(self.model.params) - set(self.model.options.learn)
        if knobs.held:
            fixed |= {name for name, param in self.model.params.items() if len(param.axes) > 1}
        return {**params, **{name: value for name, value in new.items() if name not in fixed}}


def in_any(value: np.ndarray, sums: Totals) -> bool:
    """Whether a value is, or is part of, one of the sums, which the next iteration writes over."""
    return any(np.may_share_memory(value, one) for one in sums.values())
