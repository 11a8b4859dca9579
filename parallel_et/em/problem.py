"""The problem that EM solves: model, scheme, schedule and this rank's points."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallel_et.core.capabilities import OptionalStages, Revision
from parallel_et.core.model import Model, Trainable
from parallel_et.core.scheme import Scheme, learners_of, vacant_point_states
from parallel_et.core.types import Params, Settings, Summary, Totals
from parallel_et.em.schedule import Schedule
from parallel_et.em.state import EMState
from parallel_et.errors import UserError
from parallel_et.kernels.rows import Rows
from parallel_et.parallel.exact_sum import ExactSum
from parallel_et.parallel.linear_algebra import LinearAlgebra
from parallel_et.parallel.shards import Shard
from parallel_et.parallel.threads import Team
from parallel_et.parallel.work_sharing import Deal, alone


class Holdout(NamedTuple):
    """Held-out points: this rank's rows (n, D or wider).

    Their evidence is computed after every ``every`` iterations: after each one; with minibatches after each pass; where
    a scheme searches for the states of a new point in several rounds, after as many iterations. So it costs about as
    much as learning from as many points.
    """

    shard: Shard
    rows: Rows
    every: int


@dataclass(frozen=True)
class Problem:
    """A model, a scheme and a schedule, and this rank's rows (n, D or wider).

    Attributes
    ----------
    mean : (D,) what was subtracted from each row, if anything
    held : held-out points, if there are any
    """

    model: Model
    scheme: Scheme
    schedule: Schedule
    shard: Shard
    rows: Rows
    summary: Summary
    seed: int
    team: Team
    mean: np.ndarray | None = None
    held: Holdout | None = None

    @property
    def learners(self) -> dict[str, Trainable]:
        """The trainables by name: the model, the scheme and its selection."""
        return {"model": self.model, **learners_of(self.scheme)}

    def name_of(self, learner: Trainable, stage: str) -> str:
        """Return the name of a stage in files."""
        return f"{next(name for name, one in self.learners.items() if one is learner)} {stage}"

    def initial_state(self, params: Params) -> EMState:
        """Return the state before the first iteration."""
        return EMState(0, params, vacant_point_states(self.scheme, len(self.shard)), {})

    def passes(self, settings: Settings | None = None) -> Iterator[list[tuple[Trainable, str]]]:
        """Yield the stages of the M-step, or of one iteration, by the pass over the posteriors that they share.

        The first pass has the first stage of each trainable. Each other stage has a pass of its own.
        """
        yield [(learner, learner.stages[0]) for learner in self.learners.values()]
        for learner in self.learners.values():
            for stage in learner.stages[1:]:
                if settings is None or not isinstance(learner, OptionalStages) or learner.has_stage(stage, settings):
                    yield [(learner, stage)]

    def sums(
        self, learner: Trainable, stage: str, params: Params, deal: Deal = alone, largest: float = np.inf
    ) -> list[ExactSum]:
        """Return an empty sum of the statistics of a stage for each thread.

        The first one is shared by the ranks of a node if all ranks do the M-step. The model adds up points whose values
        are at most ``largest``.
        """
        declared = learner.statistics(stage)
        shapes = {name: one.shape for name, one in declared.items()}
        summary = self.summary.within(largest) if learner is self.model else self.summary
        bounds = {
            name: one.bound if isinstance(one.bound, float) else one.bound(params, summary)
            for name, one in declared.items()
        }
        sums = [ExactSum(shapes, deal if self.dealt(learner) else alone)]
        sums += [ExactSum(shapes) for _ in range(1, self.team.size)]
        for one in sums:
            one.reset(bounds, self.shard.points, self.shard.block)
        return sums

    def algebra(self, deal: Deal) -> LinearAlgebra:
        """Return the linear algebra of the model, shared by ``deal``."""
        return LinearAlgebra(deal, self.model.distributed)

    def dealt(self, learner: Trainable) -> bool:
        """Return whether all ranks do the M-step; averages of minibatches are on the root alone."""
        return learner.distributed and self.schedule.batches.count == 1

    def nan_if_missing(self, evidence: float | None) -> float | None:
        """Return held-out evidence as the history has it: NaN where it was not computed, None without such points."""
        return None if self.held is None else np.nan if evidence is None else evidence

    def maximise(
        self,
        learner: Trainable,
        stage: str,
        params: Params,
        sums: Totals,
        settings: Settings,
        before: Params | None = None,
        earlier: Totals | None = None,
    ) -> Params:
        """Return the parameters after a stage of the M-step; parameters that are not learned stay as they are.

        ``before`` are those at the start of the iteration, and ``earlier`` the sums of the trainable's first stage.
        """
        if before is not None and earlier is not None and isinstance(learner, Revision):
            new = learner.revise(stage, params, sums, settings, self.summary, before, earlier)
        else:
            new = learner.maximise(stage, params, sums, settings, self.summary)
        for name, value in new.items():
            if name not in params or np.shape(value) != params[name].shape:
                expected = f"the shape {params[name].shape}" if name in params else f"some of {', '.join(params)}"
                found = np.shape(value) if name in params else name
                raise UserError(f"{type(learner).__name__}.maximise: {name}: expected {expected}, found {found}")
        new = {name: value.copy() if shares_memory(value, sums) else value for name, value in new.items()}
        fixed = set(self.model.params) - set(self.model.options.learn)
        if settings.held:
            fixed |= {name for name, param in self.model.params.items() if len(param.axes) > 1}
        return {**params, **{name: value for name, value in new.items() if name not in fixed}}


def shares_memory(value: np.ndarray, sums: Totals) -> bool:
    """Return whether a value lies in the memory of one of the sums, which the next iteration overwrites."""
    return any(np.may_share_memory(value, one) for one in sums.values())
