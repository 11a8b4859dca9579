"""What a job asks of a rank: points, memory and work, from its sizes alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from parallel_et.control.process import readable
from parallel_et.core.model import Model, Trainable, shape_of
from parallel_et.core.schema import in_bytes
from parallel_et.core.scheme import Scheme, initial_params_of, learners_of, vacant_point_states
from parallel_et.em.e_step import POSTERIOR_CACHE_BYTES, POSTERIOR_CACHE_SHARE

INTERPRETER = 250_000_000
"""Bytes that Python, the libraries and the compiled kernels take."""
ROOT_ARRAYS = 12
"""Arrays of the size of all parameters that the M-step has at a time."""
POINT = 50
"""Bytes of a point besides its row and what a scheme keeps: its evidence, whether it is used, and copies of these."""


@dataclass(frozen=True)
class Demand:
    """Of the rank that has most: points, states an iteration and bytes; ``root`` is what the root needs besides."""

    blocks: int
    points: int
    states: int
    data: int
    work: int
    posteriors: int
    root: int

    @property
    def memory(self) -> int:
        """Bytes of a rank other than the root, all in all."""
        return INTERPRETER + self.asked

    @property
    def asked(self) -> int:
        """Bytes of a rank other than the root that it does not have when it begins."""
        return self.data + self.work + self.posteriors

    def words(self) -> str:
        """The memory of a rank for people."""
        return (
            f"{readable(self.data)} of data, {readable(self.work)} to work in, up to {readable(self.posteriors)} for "
            f"posteriors, and for the root {readable(self.root)} more"
        )


def count_statistics(model: Model) -> int:
    """Numbers in the sufficient statistics of a model's first stage."""
    return count_sums(model, model.stages[:1])


def count_sums(learner: Trainable, stages: Iterable[str]) -> int:
    """Numbers that are summed in some stages."""
    return sum(prod(one.shape) for stage in stages for one in learner.statistics(stage).values())


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
    renewed: bool = False,
    held: int = 0,
) -> Demand:
    """The demand of ``points`` points of ``row`` bytes each, in blocks of ``block``, on so many ranks.

    ``memory`` is what a rank may keep of its rows at most, ``holds`` what their source needs, ``snapshots`` how many
    the root has of W at the end; ``averaged`` says whether it averages the statistics of batches, ``renewed`` whether
    fields may begin anew, for which what is kept of the points is there once more; so many more points
    are ``held`` out.
    """
    blocks = -(-points // block)
    most = min(points, block * -(-blocks // ranks))
    states, H, learners = scheme.count, model.latents.atoms, learners_of(scheme).values()
    fields = max(model.H * model.width, sum(prod(shape_of(model, name)) for name in model.params))
    fields += sum(value.size for value in initial_params_of(scheme, points, model.D).values())
    scratch = block * (states + (4 if learners else 2) * H + model.width)  # one that learns has predictions
    sums = 2 * (count_statistics(model) + sum(count_sums(one, one.stages) for one in learners))  # two words each
    prepared = 2 * fields + H * H
    together = ROOT_ARRAYS * fields if model.distributed else 0  # all ranks do the M-step
    kept = sum(values.nbytes for values in vacant_point_states(scheme, 1).values())
    aside = min(held, block * -(-held // (block * ranks)))
    data = (most + aside) * row
    data = data if memory is None else min(data, in_bytes(memory))
    return Demand(
        blocks=blocks,
        points=most,
        states=most * states,
        data=data,
        work=8 * (threads * (scratch + sums) + prepared + together) + (POINT + (2 + renewed) * kept) * most + holds,
        posteriors=data // POSTERIOR_CACHE_SHARE + POSTERIOR_CACHE_BYTES,
        root=8 * ((ROOT_ARRAYS + snapshots) * fields - together + (3 if averaged else 1) * sums),
    )
