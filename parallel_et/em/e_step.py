"""The E-step of one iteration over a rank's blocks: posteriors, the cut, and the sums of statistics."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import numpy as np

from parallel_et.core.model import Model, Trainable
from parallel_et.core.posterior import Posterior
from parallel_et.core.random import Random
from parallel_et.core.scheme import Context, Scheme, learners_of
from parallel_et.core.types import Block, Params, PointStates, Settings
from parallel_et.em.problem import Problem
from parallel_et.em.state import EMState
from parallel_et.em.timer import IterationTimer
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import ExactSum, exact_sum
from parallel_et.parallel.linear_algebra import LinearAlgebra
from parallel_et.parallel.shards import LARGEST, merged
from parallel_et.parallel.top_k import largest

NOT_FINITE = "parameters and data may be of too different magnitude, or a model's own log joint be no number"
POSTERIOR_CACHE_BYTES, POSTERIOR_CACHE_SHARE = 4 << 20, 8
"""Memory that a rank may always use for posteriors, and the divisor of the size of its data that is added to it."""

Stage = tuple[Trainable, str]
"""A trainable and a stage of its M-step."""
Visitor = Callable[[slice, int, Block, Posterior], None]


class EStep:
    """The posterior of each block of a batch: computed once, cached as far as memory allows, else computed again.

    The scheme writes new point states while blocks are visited. If posteriors are needed more than once the new point
    states wait until the end of the iteration, so that a repeated computation starts from the same ones.
    A ``read_only`` E-step visits blocks as they are, never merged, and leaves the state as it is.

    Attributes
    ----------
    points : number of points that the M-step uses
    evidence : (n,) F_n of the points of this rank's blocks; NaN before they were visited
    evaluator : model with the parameters of the state bound
    largest : bound of the magnitudes of the points that the M-step uses; infinity if it uses all
    """

    def __init__(
        self, problem: Problem, ranks: Ranks, state: EMState, settings: Settings, read_only: bool = False
    ) -> None:
        self.problem, self.ranks, self.state = problem, ranks, state
        self.batch_points = problem.schedule.batches.size(settings.iteration)
        self.points = min(self.batch_points, max(0, settings.points))
        self.cuts = settings.points < self.batch_points
        passes = list(problem.passes(settings))
        self.stages = [stage for stages in passes for stage in stages]
        self.timer = IterationTimer(problem.team.size)
        large = any(learner.distributed for learner in problem.learners.values())
        together = ranks.size > 1 and large and not read_only
        self.work_sharing = self.timer.measured(ranks.node) if together else self.timer.measured()
        pairs = 0 if read_only else self.batch_points * problem.scheme.pairs
        self.settings = settings._replace(algebra=problem.algebra(self.work_sharing), pairs=pairs)

        blocks = list(problem.shard.among(problem.schedule.batches.at(settings.iteration)))
        row_independent = problem.scheme.row_independent and problem.model.row_independent and not read_only
        at_once = getattr(problem.rows, "at_once", LARGEST)  # streamed rows are not all in memory
        merged_points = min(LARGEST, at_once, len(blocks) * problem.shard.block // problem.team.size)
        self.blocks = list(merged(blocks, merged_points if row_independent else 0))
        ends = np.cumsum([block.stop - block.start for block in self.blocks], dtype=int).tolist()
        places = map(slice, [0, *ends], ends)
        self._places = {block.start: place for block, place in zip(self.blocks, places, strict=True)}
        self.evidence = np.full(ends[-1] if ends else 0, np.nan)
        self.largest = np.inf

        self.evaluator = problem.model.evaluator(state.params, self.settings)
        own = {name: one.evaluator(state.params, self.settings) for name, one in learners_of(problem.scheme).items()}
        guide, chooser = own.get("scheme"), own.get("selection")
        self.evaluators = dict(zip(problem.learners.values(), (self.evaluator, *own.values()), strict=True))
        random, beta = Random(problem.seed, settings.iteration), 1 / settings.temperature
        self._contexts = [Context(self.evaluator, guide, chooser, beta, random, timer) for timer in self.timer.threads]
        self._repeats = read_only or self.cuts or len(passes) > 1
        self._new_point_states: dict[int, PointStates] = {}
        self._cache: dict[int, Posterior] = {}
        self._cache_bytes = problem.rows.nbytes // POSTERIOR_CACHE_SHARE + POSTERIOR_CACHE_BYTES
        self._lock = Lock()

    def classify(self) -> np.ndarray:
        """Return the points that the M-step uses, (n,) bool: those of largest evidence under a cut, else all."""
        if not self.cuts:
            return np.ones(len(self.evidence), bool)
        exponents = np.empty(len(self.evidence), np.int16)  # of the largest magnitudes: doubles would take more memory

        def measure(part: slice, thread: int, block: Block, posterior: Posterior) -> None:
            rows = block.rows
            exponents[self._places[part.start]] = np.frexp(np.maximum(rows.max(1), -rows.min(1)))[1]

        self.timer("blocks")
        with self.ranks.together():
            self.problem.team.share(self.blocks, partial(self._visit, measure))
            self._check_evidence()
        self.timer("cut")
        used = largest(self.ranks, self.evidence, self.settings.points)
        self.largest = 2.0 ** self.ranks.max(float(np.max(exponents, where=used, initial=-1000)))
        return used

    def statistics(self, stages: Sequence[Stage], params: Params, used: np.ndarray) -> list[ExactSum]:
        """Return this rank's sums of the statistics of each stage over the ``used`` points, in one pass over the data.

        The posteriors are those under the parameters of the state. ``params`` are the parameters that earlier stages
        of this iteration have already changed.
        """
        self.timer("prepare")
        first = stages[0] == self.stages[0]
        evaluators = self.evaluators if first else {one: one.evaluator(params, self.settings) for one, _ in stages}
        sums = [self.problem.sums(*one, params, self.work_sharing, self.largest) for one in stages]
        self.timer("blocks")

        def collect(part: slice, thread: int, block: Block, posterior: Posterior) -> None:
            for (learner, stage), of_threads in zip(stages, sums, strict=True):
                self.timer.threads[thread]("select" if learner is self.problem.scheme.selection else "statistics")
                some = used[self._places[part.start]]
                evaluators[learner].collect(stage, block, posterior, some, of_threads[thread])
            self.timer.threads[thread]("waiting")

        with self.ranks.together():
            self.problem.team.share(self.blocks, partial(self._visit, collect))
            self._check_evidence()
            for of_threads in sums:
                for total in of_threads:
                    total.check()
                for total in of_threads[1:]:
                    of_threads[0].merge(total)
        return [of_threads[0] for of_threads in sums]

    def visit(self, visitor: Visitor) -> None:
        """Compute the posteriors of all blocks, and show each with its place, its thread and its points."""
        self.problem.team.share(self.blocks, partial(self._visit, visitor))
        self._check_evidence()

    def new_point_states(self) -> PointStates:
        """Return the point states after the iteration, in the arrays of the state."""
        for block in self.blocks if self._repeats else ():
            self._store(block, self._new_point_states[block.start])
        return self.state.point_states

    def free_energy(self) -> float:
        """Return the mean F_n over the points of all ranks; collective."""
        return exact_sum(self.ranks, self.evidence, self.batch_points) / self.batch_points

    def _check_evidence(self) -> None:
        """Raise a UserError that names the first point without evidence."""
        bad = np.flatnonzero(~np.isfinite(self.evidence))
        if len(bad):
            start, place = next((start, place) for start, place in self._places.items() if bad[0] < place.stop)
            point = self.problem.shard.first + start + bad[0] - place.start
            where = f"iteration {self.settings.iteration}: point {point}"
            raise UserError(f"{where}: expected finite evidence, found {self.evidence[bad[0]]}; {NOT_FINITE}")

    def _visit(self, visitor: Visitor | None, part: slice, thread: int) -> None:
        """Compute the posterior of a block unless it is cached, and show it to the visitor."""
        problem, timer = self.problem, self.timer.threads[thread]
        rows = pad_rows(problem.rows[part])
        block = Block(rows, problem.model.D, problem.shard.first + part.start, problem.shard.block)
        posterior = self._cache.get(part.start)
        if posterior is None:
            point_states = {name: values[part] for name, values in self.state.point_states.items()}
            posterior, new = problem.scheme.infer(self._contexts[thread], block, point_states)
            timer("select")
            selection = problem.scheme.selection
            new = {**new, **selection.new_point_states(self._contexts[thread], block, posterior, point_states)}
            timer("waiting")
            self.evidence[self._places[part.start]] = posterior.evidence
            self._keep(part, posterior, new)
        if visitor is not None:
            visitor(part, thread, block, posterior)

    def _keep(self, part: slice, posterior: Posterior, new: PointStates) -> None:
        """Cache a posterior that may be needed again, and hold its point states back; else store these."""
        if not self._repeats:
            self._store(part, new)
            return
        self._new_point_states[part.start] = new
        with self._lock:
            if posterior.nbytes <= self._cache_bytes:
                self._cache_bytes -= posterior.nbytes
                self._cache[part.start] = posterior

    def _store(self, part: slice, new: PointStates) -> None:
        for name, values in new.items():
            self.state.point_states[name][part] = values


def context_at_rest(model: Model, scheme: Scheme, params: Params, seed: int = 0) -> Context:
    """Return the E-step of a trained model: at temperature 1, whatever the schedules of its job were."""
    rules = {name: own.rule(1.0) for name, own in model.schedules.items()}
    settings = Settings(0, 1.0, 0.0, 0, {}, rules, scheme.most, algebra=LinearAlgebra(large=model.distributed))
    own = {name: one.evaluator(params, settings) for name, one in learners_of(scheme).items()}
    evaluator = model.evaluator(params, settings)
    return Context(evaluator, own.get("scheme"), own.get("selection"), 1.0, Random(seed, 0), lambda phase: None)
