"""The demand of a job on a rank: points, memory and work, computed from sizes alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from parallel_et.control.process import format_bytes
from parallel_et.core.model import Model, Trainable, shape_of
from parallel_et.core.schema import in_bytes
from parallel_et.core.scheme import Scheme, initial_params_of, initial_point_states_of, trainable_parts
from parallel_et.em.e_step import POSTERIOR_CACHE_BYTES, POSTERIOR_CACHE_DIVISOR

INTERPRETER_BYTES = 250_000_000
"""Bytes of Python, the libraries and the compiled kernels."""
ROOT_ARRAYS = 12
"""Number of arrays of the size of all parameters that the M-step holds at the same time."""
POINT_BYTES = 50
"""Bytes per point in addition to its row and its states: evidence, selection by the cut, and copies of both."""


@dataclass(frozen=True)
class Demand:
    """The demand on the rank with the most points.

    Attributes
    ----------
    blocks : number of blocks of the job
    points : points of the rank
    states : states that the rank evaluates in an iteration
    data, work, posteriors : bytes of rows, of working memory and of cached posteriors
    root : additional bytes of the root
    """

    blocks: int
    points: int
    states: int
    data: int
    work: int
    posteriors: int
    root: int

    @property
    def memory(self) -> int:
        """Bytes of a rank other than the root."""
        return INTERPRETER_BYTES + self.allocated

    @property
    def allocated(self) -> int:
        """Bytes that a rank other than the root allocates after its start."""
        return self.data + self.work + self.posteriors

    def description(self) -> str:
        """Return the memory of a rank in words."""
        return (
            f"{format_bytes(self.data)} of data, {format_bytes(self.work)} of working memory, "
            f"up to {format_bytes(self.posteriors)} of cached posteriors, "
            f"and {format_bytes(self.root)} more on the root"
        )


def count_statistics(model: Model) -> int:
    """Return the number of values in the sufficient statistics of the first stage of a model."""
    return count_sums(model, model.stages[:1])


def count_sums(trainable: Trainable, stages: Iterable[str]) -> int:
    """Return the number of values in the statistics of some stages."""
    return sum(prod(one.shape) for stage in stages for one in trainable.statistics(stage).values())


def demand(
    model: Model,
    scheme: Scheme,
    points: int,
    block: int,
    row: int,
    ranks: int,
    threads: int = 1,
    memory: str | float | None = None,
    holds: int = 0,
    snapshots: int = 0,
    averaged: bool = False,
    restarted: bool = False,
    held_out: int = 0,
) -> Demand:
    """Return the demand of a job on the rank with the most points.

    Parameters
    ----------
    points : number of points from which the job learns
    block : number of points per block
    row : bytes per point
    ranks : number of ranks
    threads : number of threads per rank
    memory : ``data.memory``, maximum number of bytes of rows that a rank keeps
    holds : bytes that the source of the data needs
    snapshots : number of snapshots at the end of the run, on the root
    averaged : the statistics of minibatches are averaged
    restarted : fields may be restarted, which needs a copy of the point states
    held_out : number of held-out points
    """
    blocks = -(-points // block)
    most = min(points, block * -(-blocks // ranks))
    states, H, trainables = scheme.count, model.latents.atoms, trainable_parts(scheme).values()
    fields = max(model.H * model.width, sum(prod(shape_of(model, name)) for name in model.params))
    fields += sum(value.size for value in initial_params_of(scheme, points, model.D).values())
    scratch = block * (states + (4 if trainables else 2) * H + model.width)  # a trainable selection has predictions
    sums = 2 * (
        count_statistics(model) + sum(count_sums(one, one.stages) for one in trainables)
    )  # an exact sum has two words per value
    evaluator = 2 * fields + H * H
    distributed = ROOT_ARRAYS * fields if model.distributed else 0  # all ranks compute the M-step
    point_states = sum(values.nbytes for values in initial_point_states_of(scheme, 1).values())
    most_held_out = min(held_out, block * -(-held_out // (block * ranks)))
    data = (most + most_held_out) * row
    data = data if memory is None else min(data, in_bytes(memory))
    return Demand(
        blocks=blocks,
        points=most,
        states=most * states,
        data=data,
        work=8 * (threads * (scratch + sums) + evaluator + distributed)
        + (POINT_BYTES + (2 + restarted) * point_states) * most
        + holds,
        posteriors=data // POSTERIOR_CACHE_DIVISOR + POSTERIOR_CACHE_BYTES,
        root=8 * ((ROOT_ARRAYS + snapshots) * fields - distributed + (3 if averaged else 1) * sums),
    )
