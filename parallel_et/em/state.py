"""The state of EM between two iterations, and the metadata of one iteration."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from parallel_et.core.types import Params, PointStates, Settings, Totals
from parallel_et.em.timer import SharedWork

Averages = Mapping[str, Totals]
"""Running averages of the statistics, on the root. The keys are "TRAINABLE STAGE", then the name of a statistic."""


class Progress(NamedTuple):
    """The memory of the schedule.

    Attributes
    ----------
    quiet : number of consecutive iterations with little change, for the convergence stop
    cooled : number of steps of a temperature that falls only while the fields change little
    best : held-out evidence per point when it last rose by more than ``stop.change``
    """

    quiet: int = 0
    cooled: int = 0
    best: float = -np.inf


class EMState(NamedTuple):
    """Everything that the next iteration needs in addition to the problem. A checkpoint stores exactly this.

    An iteration consumes its state: the new state may contain the same, overwritten arrays of ``point_states``.

    Attributes
    ----------
    iteration : number of finished iterations
    params : parameters, the same on all ranks
    point_states : variational states of this rank's points, arrays (n, ...) by name; empty for et
    averages : running averages of the statistics, on the root; empty without minibatches
    progress : memory of the schedule
    """

    iteration: int
    params: Params
    point_states: PointStates
    averages: Averages
    progress: Progress = Progress()

    def copy(self) -> "EMState":
        """Return a state whose point states another iteration may consume."""
        return self._replace(point_states={name: values.copy() for name, values in self.point_states.items()})


class Info(NamedTuple):
    """Metadata of one iteration.

    Attributes
    ----------
    settings : values of the schedules
    free_energy : mean F_n, before the M-step
    points_used : number of points in the M-step
    unused : (H,) bool, causes without weight in the statistics; only on the root
    seconds : time of each phase
    shared_work : work that ranks shared
    restarted : number of fields that were restarted before the iteration; None if the schedule has no restarts
    holdout : held-out evidence per point after the iteration; NaN if not computed, None without held-out points
    """

    settings: Settings
    free_energy: float
    points_used: int
    unused: np.ndarray
    seconds: Mapping[str, float]
    shared_work: Sequence[SharedWork]
    restarted: int | None = None
    holdout: float | None = None
