"""The E-step of one iteration over a rank's blocks: posteriors, and the sums of statistics under them."""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from parallel_et.core.clock import Clock
from parallel_et.core.contract import Block, EStep, Kept, Knobs, Learner, Model, Params, Scheme
from parallel_et.core.posterior import Posterior
from parallel_et.core.problem import Problem
from parallel_et.core.random import Random
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.shard import LARGEST, merged
from parallel_et.parallel.sums import ExactSum

FAR = "parameters and data may be of too different magnitude, or a model's own log joint be no number"
ROOM, SHARE = 4 << 20, 6
"""Bytes that a rank may always spend on posteriors, besides a sixth of its data."""


class Expectation:
    """The posterior of each block of a batch: computed when asked for, remembered as far as memory allows, else again.

    What a scheme keeps of the points is taken over by ``keep``, once all blocks have been visited; where posteriors
    are needed more than once it waits beside until then, so that computing one again begins with the same.
    With ``alike``, where points are treated alike whatever is beside them, several blocks are one.
    """

    def __init__(self, problem: Problem, params: Params, knobs: Knobs, again: bool, alike: bool = False) -> None:
        self.problem, self.knobs = problem, knobs
        blocks = list(problem.shard.among(problem.plan.batches.at(knobs.iteration)))
        room = getattr(problem.rows, "at_once", LARGEST)  # where they are not all in memory
        most = min(LARGEST, room, len(blocks) * problem.shard.block // problem.team.size) if alike else 0
        self.parts = list(merged(blocks, most))
        self.clocks = [Clock("waiting") for _ in range(problem.team.size)]
        ends = np.cumsum([part.stop - part.start for part in self.parts], dtype=int).tolist()
        places = map(slice, [0, *ends], ends)
        self._places = {part.start: place for part, place in zip(self.parts, places, strict=True)}
        self.evidence = np.full(ends[-1] if ends else 0, np.nan)
        random, beta = Random(problem.seed, knobs.iteration), 1 / knobs.temperature
        self.prepared = {learner: learner.prepare(params, knobs) for learner in problem.learners.values()}
        self.ready = self.prepared[problem.model]
        ready, guide, chooser = self.prepared.values()
        self._steps = [EStep(problem.model, ready, guide, chooser, beta, random, clock) for clock in self.clocks]
        self._kept: dict[int, Kept] = {}
        self._remembered: dict[int, Posterior] = {}
        self._again, self._room = again, problem.rows.nbytes // SHARE + ROOM
        self._lock = Lock()

    def visit(self, work: Callable[[slice, Block, Posterior], None] = lambda *_: None) -> None:
        """Compute the posteriors of all blocks, and have something done with each: where it is, its points, this."""
        self._share(lambda part, thread: work(part, *self._of(part, thread)))

    def collect(
        self,
        stages: Sequence[tuple[Learner, str]],
        every: Sequence[list[ExactSum]],
        ready: Mapping[Learner, Any],
        used: np.ndarray,
    ) -> list[ExactSum]:
        """The statistics of each stage of the used ones of the ``evidence``, (n,) bool, in one pass.

        They are added up in ``every``, which has sums for each thread.
        """

        def work(part: slice, thread: int) -> None:
            block, posterior = self._of(part, thread)
            for (learner, stage), totals in zip(stages, every, strict=True):
                self.clocks[thread]("select" if learner is self.problem.scheme.selection else "statistics")
                some = used[self._places[part.start]]
                learner.collect(stage, ready[learner], block, posterior, some, totals[thread])
            self.clocks[thread]("waiting")

        self._share(work)
        for totals in every:
            for total in totals:
                total.check()
            for total in totals[1:]:
                totals[0].merge(total)
        return [totals[0] for totals in every]

    def keep(self) -> None:
        """From now on the points are as the scheme has left them."""
        for part in self.parts if self._again else ():
            self._take_over(part, self._kept[part.start])

    def _take_over(self, part: slice, new: Kept) -> None:
        for name, values in new.items():
            self.problem.kept[name][part] = values

    def _share(self, work: Callable[[slice, int], object]) -> None:
        """Let the threads do it for all blocks; UserError that names the first point without evidence."""
        self.problem.team.share(self.parts, work)
        bad = np.flatnonzero(~np.isfinite(self.evidence))
        if len(bad):
            start, place = next((s, p) for s, p in self._places.items() if bad[0] < p.stop)
            point = self.problem.shard.first + start + bad[0] - place.start
            where = f"iteration {self.knobs.iteration}: point {point}"
            raise UserError(f"{where}: expected finite evidence, found {self.evidence[bad[0]]}; {FAR}")

    def _of(self, part: slice, thread: int) -> tuple[Block, Posterior]:
        problem, clock = self.problem, self.clocks[thread]
        shard, rows = problem.shard, pad_rows(problem.rows[part])
        block = Block(rows, problem.model.D, shard.first + part.start, shard.block)
        if part.start in self._remembered:
            return block, self._remembered[part.start]
        kept = {name: values[part] for name, values in problem.kept.items()}
        step, selection = self._steps[thread], problem.scheme.selection
        posterior, new = problem.scheme.infer(step, block, kept)
        clock("select")
        new = {**new, **selection.note(step, block, posterior, kept)}
        clock("waiting")
        self.evidence[self._places[part.start]] = posterior.evidence
        if not self._again:
            self._take_over(part, new)
        else:
            self._kept[part.start] = new
            size = posterior.nbytes
            with self._lock:
                if size <= self._room:
                    self._room -= size
                    self._remembered[part.start] = posterior
        return block, posterior


def at_rest(model: Model, scheme: Scheme, params: Params, seed: int = 0) -> EStep:
    """The E-step of a trained model: at temperature 1, whatever the schedules of its job were."""
    knobs = Knobs(0, 1.0, 0.0, 0, {}, {name: knob.rule(1.0) for name, knob in model.knobs.items()}, scheme.most)
    ready, guide, chooser = (learner.prepare(params, knobs) for learner in (model, scheme, scheme.selection))
    return EStep(model, ready, guide, chooser, 1.0, Random(seed, 0), lambda phase: None)
