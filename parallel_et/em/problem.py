"""The problem that EM solves: model, scheme, schedule and the points of this rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallel_et.core.capabilities import OptionalStages, Revision
from parallel_et.core.model import Model, Trainable
from parallel_et.core.scheme import Scheme, initial_point_states_of, trainable_parts
from parallel_et.core.types import Params, Settings, Summary, Totals
from parallel_et.em.schedule import Schedule
from parallel_et.em.state import EMState
from parallel_et.errors import UserError
from parallel_et.kernels.rows import Rows
from parallel_et.parallel.exact_sum import ExactSum
from parallel_et.parallel.linear_algebra import LinearAlgebra
from parallel_et.parallel.shards import Shard
from parallel_et.parallel.threads import ThreadTeam
from parallel_et.parallel.work_sharing import WorkSharing, serial


class Holdout(NamedTuple):
    """The held-out points of this rank.

    Attributes
    ----------
    shard, rows : blocks of this rank, and their rows (n, D or wider)
    every : number of iterations between computations of the evidence: the number of minibatches, or of the rounds of
        the search for the states of new points, so that a held-out point costs about as much as a training point
    """

    shard: Shard
    rows: Rows
    every: int


@dataclass(frozen=True)
class Problem:
    """A model, a scheme, a schedule, and the data.

    Attributes
    ----------
    shard, rows : blocks of this rank, and their rows (n, D or wider)
    summary : summary statistics of the points of all ranks
    seed : seed of all random numbers
    team : threads of this rank
    mean : (D,) mean that was subtracted from each row; None without centring
    holdout : held-out points; None if there are none
    """

    model: Model
    scheme: Scheme
    schedule: Schedule
    shard: Shard
    rows: Rows
    summary: Summary
    seed: int
    team: ThreadTeam
    mean: np.ndarray | None = None
    holdout: Holdout | None = None

    @property
    def trainables(self) -> dict[str, Trainable]:
        """The trainables by name: the model, the scheme and its selection."""
        return {"model": self.model, **trainable_parts(self.scheme)}

    def name_of(self, trainable: Trainable, stage: str) -> str:
        """Return the name of a stage in files."""
        return f"{next(name for name, one in self.trainables.items() if one is trainable)} {stage}"

    def initial_state(self, params: Params) -> EMState:
        """Return the state before the first iteration."""
        return EMState(0, params, initial_point_states_of(self.scheme, len(self.shard)), {})

    def passes(self, settings: Settings | None = None) -> Iterator[list[tuple[Trainable, str]]]:
        """Yield the stages of each pass over the posteriors, of all iterations or of the iteration with ``settings``.

        The first pass contains the first stage of each trainable. Each later stage has its own pass.
        """
        yield [(trainable, trainable.stages[0]) for trainable in self.trainables.values()]
        for trainable in self.trainables.values():
            for stage in trainable.stages[1:]:
                if (
                    settings is None
                    or not isinstance(trainable, OptionalStages)
                    or trainable.has_stage(stage, settings)
                ):
                    yield [(trainable, stage)]

    def sums(
        self,
        trainable: Trainable,
        stage: str,
        params: Params,
        work_sharing: WorkSharing = serial,
        largest: float = np.inf,
    ) -> list[ExactSum]:
        """Return empty sums of the statistics of a stage, one for each thread.

        If all ranks do the M-step, the ranks of a node share the memory of the first sum. The bounds assume that
        points have magnitudes of at most ``largest``.
        """
        declared = trainable.statistics(stage)
        shapes = {name: one.shape for name, one in declared.items()}
        summary = self.summary.within(largest) if trainable is self.model else self.summary
        bounds = {
            name: one.bound(params, summary) if callable(one.bound) else float(one.bound)
            for name, one in declared.items()
        }
        sums = [ExactSum(shapes, work_sharing if self.is_distributed(trainable) else serial)]
        sums += [ExactSum(shapes) for _ in range(1, self.team.size)]
        for one in sums:
            one.reset(bounds, self.shard.points, self.shard.block)
        return sums

    def algebra(self, work_sharing: WorkSharing) -> LinearAlgebra:
        """Return the linear algebra of the model, shared by ``work_sharing``."""
        return LinearAlgebra(work_sharing, self.model.distributed)

    def is_distributed(self, trainable: Trainable) -> bool:
        """Return whether all ranks do the M-step. With minibatches the root does it, because it stores the averages."""
        return trainable.distributed and self.schedule.batches.count == 1

    def nan_if_missing(self, evidence: float | None) -> float | None:
        """Return held-out evidence for the history: NaN if it was not computed, None without held-out points."""
        return None if self.holdout is None else np.nan if evidence is None else evidence

    def maximise(
        self,
        trainable: Trainable,
        stage: str,
        params: Params,
        sums: Totals,
        settings: Settings,
        before: Params | None = None,
        earlier: Totals | None = None,
    ) -> Params:
        """Return all parameters after a stage of the M-step. Parameters that are not learned keep their values.

        ``before`` contains the parameters at the start of the iteration, ``earlier`` the sums of the first stage of the
        trainable.
        """
        if before is not None and earlier is not None and isinstance(trainable, Revision):
            new = trainable.revise(stage, params, sums, settings, self.summary, before, earlier)
        else:
            new = trainable.maximise(stage, params, sums, settings, self.summary)
        for name, value in new.items():
            if name not in params or np.shape(value) != params[name].shape:
                expected = f"the shape {params[name].shape}" if name in params else f"some of {', '.join(params)}"
                found = np.shape(value) if name in params else name
                raise UserError(f"{type(trainable).__name__}.maximise: {name}: expected {expected}, found {found}")
        new = {name: value.copy() if shares_memory(value, sums) else value for name, value in new.items()}
        fixed = set(self.model.params) - set(self.model.options.learn)
        if settings.fields_frozen:
            fixed |= {name for name, param in self.model.params.items() if len(param.axes) > 1}
        return {**params, **{name: value for name, value in new.items() if name not in fixed}}


def shares_memory(value: np.ndarray, sums: Totals) -> bool:
    """Return whether a value lies in the memory of one of the sums, which the next iteration overwrites."""
    return any(np.may_share_memory(value, one) for one in sums.values())
