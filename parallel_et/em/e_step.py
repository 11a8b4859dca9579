"""The E-step of one iteration over a rank's blocks: posteriors, the cut, and the sums of statistics."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import numpy as np

from parallel_et.core.model import Model, Trainable
from parallel_et.core.posterior import Posterior
from parallel_et.core.random import Random
from parallel_et.core.scheme import Context, Scheme, trainable_parts
from parallel_et.core.types import Block, Params, PointStates, Settings
from parallel_et.em.problem import Problem
from parallel_et.em.state import EMState
from parallel_et.em.timer import IterationTimer
from parallel_et.errors import UserError
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import ExactSum, exact_sum
from parallel_et.parallel.linear_algebra import LinearAlgebra
from parallel_et.parallel.shards import MAX_BLOCK_POINTS, merge_blocks
from parallel_et.parallel.top_k import mark_largest

NOT_FINITE = "the magnitudes of parameters and data may differ too much, or a model's own log joint may be NaN"
POSTERIOR_CACHE_BYTES = 4 << 20
"""Memory of a rank for cached posteriors, in addition to a fraction of the size of its data."""
POSTERIOR_CACHE_DIVISOR = 8
"""Divisor of the size of the data for that fraction."""

Stage = tuple[Trainable, str]
"""A trainable and a stage of its M-step."""
Visitor = Callable[[slice, int, Block, Posterior], None]
"""A function that is called for each block with its rows of this rank, the thread, the block and its posterior."""


class EStep:
    """The E-step of one iteration over the blocks of a batch.

    Each posterior is computed once and cached. A posterior that does not fit in the cache is computed again in each
    pass. All passes must start from the same point states. With several passes, new point states are therefore stored
    at the end of the iteration. A ``read_only`` E-step does not merge blocks and does not change the state.

    Attributes
    ----------
    points : number of points that the M-step uses
    evidence : (n,) F_n of the points of this rank's blocks; NaN before the first pass
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
        large = any(trainable.distributed for trainable in problem.trainables.values())
        together = ranks.size > 1 and large and not read_only
        self.work_sharing = self.timer.measured(ranks.work_sharing) if together else self.timer.measured()
        pairs = 0 if read_only else self.batch_points * problem.scheme.pairs
        self.settings = settings._replace(algebra=problem.algebra(self.work_sharing), pairs=pairs)

        blocks = list(problem.shard.selected_blocks(problem.schedule.batches.block_numbers(settings.iteration)))
        row_independent = problem.scheme.row_independent and problem.model.row_independent and not read_only
        request_points = getattr(problem.rows, "request_points", MAX_BLOCK_POINTS)  # of streamed rows
        merged_points = min(MAX_BLOCK_POINTS, request_points, len(blocks) * problem.shard.block // problem.team.size)
        self.blocks = list(merge_blocks(blocks, merged_points if row_independent else 0))
        ends = np.cumsum([block.stop - block.start for block in self.blocks], dtype=int).tolist()
        positions = map(slice, [0, *ends], ends)
        self._positions = {block.start: position for block, position in zip(self.blocks, positions, strict=True)}
        self.evidence = np.full(ends[-1] if ends else 0, np.nan)
        self.largest = np.inf

        self.evaluator = problem.model.evaluator(state.params, self.settings)
        own = {
            name: one.evaluator(state.params, self.settings) for name, one in trainable_parts(problem.scheme).items()
        }
        of_scheme, of_selection = own.get("scheme"), own.get("selection")
        self.evaluators = dict(zip(problem.trainables.values(), (self.evaluator, *own.values()), strict=True))
        random, beta = Random(problem.seed, settings.iteration), 1 / settings.temperature
        self._contexts = [
            Context(self.evaluator, of_scheme, of_selection, beta, random, timer) for timer in self.timer.threads
        ]
        self._repeats = read_only or self.cuts or len(passes) > 1
        self._new_point_states: dict[int, PointStates] = {}
        self._cache: dict[int, Posterior] = {}
        self._cache_bytes = problem.rows.nbytes // POSTERIOR_CACHE_DIVISOR + POSTERIOR_CACHE_BYTES
        self._lock = Lock()

    def classify(self) -> np.ndarray:
        """Return a mask of the points of the M-step, (n,) bool: all, or with a cut those of largest evidence."""
        if not self.cuts:
            return np.ones(len(self.evidence), bool)
        exponents = np.empty(len(self.evidence), np.int16)  # of the magnitudes of the points; floats need more memory

        def measure(rows_slice: slice, thread: int, block: Block, posterior: Posterior) -> None:
            rows = block.rows
            exponents[self._positions[rows_slice.start]] = np.frexp(np.maximum(rows.max(1), -rows.min(1)))[1]

        self.timer("blocks")
        with self.ranks.synchronise_errors():
            self.problem.team.map_blocks(self.blocks, partial(self._visit, measure))
            self._check_evidence()
        self.timer("cut")
        used = mark_largest(self.ranks, self.evidence, self.settings.points)
        self.largest = 2.0 ** self.ranks.max(float(np.max(exponents, where=used, initial=-1000)))
        return used

    def statistics(self, stages: Sequence[Stage], params: Params, used: np.ndarray) -> list[ExactSum]:
        """Return this rank's sums of the statistics of each stage over the ``used`` points, in one pass over the data.

        Posteriors depend on the parameters of the state. ``params`` are the parameters after the earlier stages of this
        iteration.
        """
        self.timer("prepare")
        first = stages[0] == self.stages[0]
        evaluators = self.evaluators if first else {one: one.evaluator(params, self.settings) for one, _ in stages}
        sums = [self.problem.sums(*one, params, self.work_sharing, self.largest) for one in stages]
        self.timer("blocks")

        def collect(rows_slice: slice, thread: int, block: Block, posterior: Posterior) -> None:
            for (trainable, stage), thread_sums in zip(stages, sums, strict=True):
                self.timer.threads[thread]("select" if trainable is self.problem.scheme.selection else "statistics")
                some = used[self._positions[rows_slice.start]]
                evaluators[trainable].collect(stage, block, posterior, some, thread_sums[thread])
            self.timer.threads[thread]("waiting")

        with self.ranks.synchronise_errors():
            self.problem.team.map_blocks(self.blocks, partial(self._visit, collect))
            self._check_evidence()
            for thread_sums in sums:
                for total in thread_sums:
                    total.check()
                for total in thread_sums[1:]:
                    thread_sums[0].merge(total)
        return [thread_sums[0] for thread_sums in sums]

    def visit(self, visitor: Visitor) -> None:
        """Compute the posteriors of all blocks, and call the visitor for each."""
        self.problem.team.map_blocks(self.blocks, partial(self._visit, visitor))
        self._check_evidence()

    def new_point_states(self) -> PointStates:
        """Return the point states after the iteration, in the arrays of the state."""
        for block in self.blocks if self._repeats else ():
            self._store(block, self._new_point_states[block.start])
        return self.state.point_states

    def free_energy(self) -> float:
        """Return the mean F_n over the points of all ranks. Collective."""
        return exact_sum(self.ranks, self.evidence, self.batch_points) / self.batch_points

    def _check_evidence(self) -> None:
        """Raise a UserError with the first point without finite evidence."""
        bad = np.flatnonzero(~np.isfinite(self.evidence))
        if len(bad):
            start, position = next(item for item in self._positions.items() if bad[0] < item[1].stop)
            point = self.problem.shard.first + start + bad[0] - position.start
            where = f"iteration {self.settings.iteration}: point {point}"
            raise UserError(f"{where}: expected finite evidence, found {self.evidence[bad[0]]}; {NOT_FINITE}")

    def _visit(self, visitor: Visitor | None, rows_slice: slice, thread: int) -> None:
        """Compute the posterior of a block unless it is cached, and call the visitor."""
        problem, timer = self.problem, self.timer.threads[thread]
        rows = pad_rows(problem.rows[rows_slice])
        block = Block(rows, problem.model.D, problem.shard.first + rows_slice.start, problem.shard.block)
        posterior = self._cache.get(rows_slice.start)
        if posterior is None:
            point_states = {name: values[rows_slice] for name, values in self.state.point_states.items()}
            posterior, new = problem.scheme.infer(self._contexts[thread], block, point_states)
            timer("select")
            selection = problem.scheme.selection
            new = {**new, **selection.new_point_states(self._contexts[thread], block, posterior, point_states)}
            timer("waiting")
            self.evidence[self._positions[rows_slice.start]] = posterior.evidence
            self._keep(rows_slice, posterior, new)
        if visitor is not None:
            visitor(rows_slice, thread, block, posterior)

    def _keep(self, rows_slice: slice, posterior: Posterior, new: PointStates) -> None:
        """Keep a posterior and its point states for further passes, or store the point states if there is one pass."""
        if not self._repeats:
            self._store(rows_slice, new)
            return
        self._new_point_states[rows_slice.start] = new
        with self._lock:
            if posterior.nbytes <= self._cache_bytes:
                self._cache_bytes -= posterior.nbytes
                self._cache[rows_slice.start] = posterior

    def _store(self, rows_slice: slice, new: PointStates) -> None:
        """Store the new point states of a block in the arrays of the state."""
        for name, values in new.items():
            self.state.point_states[name][rows_slice] = values


def inference_context(model: Model, scheme: Scheme, params: Params, seed: int = 0) -> Context:
    """Return the context of a trained model: temperature 1, independent of the schedules of its job."""
    rules = {name: own.rule(1.0) for name, own in model.schedules.items()}
    settings = Settings(0, 1.0, 0.0, 0, {}, rules, scheme.max_active, algebra=LinearAlgebra(large=model.distributed))
    own = {name: one.evaluator(params, settings) for name, one in trainable_parts(scheme).items()}
    evaluator = model.evaluator(params, settings)
    return Context(evaluator, own.get("scheme"), own.get("selection"), 1.0, Random(seed, 0), lambda phase: None)
