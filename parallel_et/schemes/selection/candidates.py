"""How a scheme that preselects comes to its candidates: the keys of [inference] for it, and what they name."""

from typing import Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import BlockView
from parallel_et.core.options import SchemeOptions
from parallel_et.core.schema import MOST, Section
from parallel_et.core.scheme import Context, Selection
from parallel_et.core.types import Block, PointStates
from parallel_et.kernels import select

MOST_RANK = 4096


class GPOptions(Section):
    """The keys of [inference.gp]."""

    kernel: Literal["linear", "rbf", "composed"] = Field(
        "composed", description="of two points: their product, a Gauss curve of their distance, or the sum of both"
    )
    rank: int = Field(
        256, ge=1, le=MOST_RANK, description="points that all others are compared with, Q; with all points it is exact"
    )
    first: Literal["random", "own"] = Field(
        "random", description="candidates of the first iteration, before anything is learned: any, or the model's"
    )
    every: int = Field(10, ge=1, le=MOST, description="iterations after which the kernel is fitted again, T*")


class SelectingOptions(SchemeOptions):
    """The keys of [inference] for schemes that preselect."""

    selection: Literal["own", "gp", "random"] = Field(
        "own",
        description="how causes are preselected: as the model has it, by a regression that is learned, or at random",
    )
    gp: GPOptions = Field(GPOptions(), description='how they are for selection = "gp"')


class Random(Selection):
    """Any atoms, in every iteration others."""

    def select(self, context: Context, view: BlockView, point_states: PointStates, count: int) -> np.ndarray:
        return with_random(context, view.block, np.empty((len(view), 0), np.int32), count)


def chosen(
    selection: Selection, context: Context, view: BlockView, point_states: PointStates, count: int, random: int = 0
) -> np.ndarray:
    """Return the candidates of each point in rising order, ``random`` of them drawn at random; (n, count) int32."""
    atoms = view.model.latents.atoms
    if count == atoms:
        return np.tile(np.arange(atoms, dtype=np.int32), (len(view), 1))
    best = selection.select(context, view, point_states, count - random)
    return with_random(context, view.block, best, count)


def with_random(context: Context, block: Block, best: np.ndarray, count: int) -> np.ndarray:
    """Return the candidates (n, less) in rising order, and random atoms that make them ``count``."""
    random = count - best.shape[1]
    if not random:
        return best
    candidates = np.empty((len(block), count), np.int32)
    candidates[:, : count - random] = best
    uniforms = context.random.uniforms("candidates", block.first, (len(block), random))
    select.add_random(uniforms, context.evaluator.model.latents.atoms, candidates)
    return candidates
