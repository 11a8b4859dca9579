"""What a job asks of a rank: points, memory and work, from its sizes alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_et.models.base import Model
from parallel_et.posterior.memory import ROOM
from parallel_et.schema import in_bytes

INTERPRETER = 250_000_000
"""Bytes that Python, the libraries and the compiled kernels take."""
ROOT_ARRAYS = 12
"""Arrays of the size of W that the M-step has at a time."""


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
        return INTERPRETER + self.data + self.work + self.posteriors


def count_statistics(model: Model) -> int:
    """Numbers in the sufficient statistics of a model's first stage."""
    return sum(int(np.prod(shape)) for shape in model.statistics_like(model.stages[0]).values())


def demand(
    model: Model,
    scheme: Any,
    points: int,
    block: int,
    row: int,
    ranks: int,
    threads: int = 1,
    memory: str | float | None = None,
) -> Demand:
    """The demand of ``points`` points of ``row`` bytes each, in blocks of ``block``, on so many ranks.

    ``memory`` is what a rank may keep of its rows at most.
    """
    blocks = -(-points // block)
    most = min(points, block * -(-blocks // ranks))
    states, H, fields = len(scheme.states), model.H, model.H * model.width
    scratch = block * (states + 2 * H + model.width)
    sums = 2 * count_statistics(model)  # two words each
    prepared = 2 * fields + H * H
    data = most * row if memory is None else min(most * row, in_bytes(memory))
    return Demand(
        blocks=blocks,
        points=most,
        states=most * states,
        data=data,
        work=8 * (threads * (scratch + sums) + prepared),
        posteriors=data // 5 + ROOM,
        root=8 * (ROOT_ARRAYS * fields + sums),
    )
