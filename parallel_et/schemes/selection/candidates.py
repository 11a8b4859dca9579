"""The preselection of candidates: its keys of [inference], random candidates, and the selection for a block."""

from typing import Literal

import numpy as np
from pydantic import Field

from parallel_et.core.model import BlockView
from parallel_et.core.options import SchemeOptions
from parallel_et.core.schema import MAX_COUNT, Section
from parallel_et.core.scheme import Context, Selection
from parallel_et.core.types import Block, PointStates
from parallel_et.kernels import select

MAX_RANK = 4096
"""Largest number of pivots."""


class GPOptions(Section):
    """The keys of [inference.gp]."""

    kernel: Literal["linear", "rbf", "composed"] = Field(
        "composed", description="kernel of two points: product, Gaussian of the distance, or the sum of both"
    )
    rank: int = Field(
        256,
        ge=1,
        le=MAX_RANK,
        description="number of pivots Q, with which all points are compared; exact if all points are pivots",
    )
    first: Literal["random", "own"] = Field(
        "random", description="candidates of the first iteration: random, or those of the model"
    )
    every: int = Field(10, ge=1, le=MAX_COUNT, description="iterations between fits of the kernel, T*")


class SelectingOptions(SchemeOptions):
    """The keys of [inference] for schemes that preselect."""

    selection: Literal["own", "gp", "random"] = Field(
        "own",
        description="preselection of causes: by the model, by a Gaussian process that is learned, or at random",
    )
    gp: GPOptions = Field(GPOptions(), description='settings for selection = "gp"')


class Random(Selection):
    """Random candidates, which change in every iteration."""

    def select(self, context: Context, view: BlockView, point_states: PointStates, count: int) -> np.ndarray:
        return add_random_atoms(context, view.block, np.empty((len(view), 0), np.int32), count)


def select_candidates(
    selection: Selection, context: Context, view: BlockView, point_states: PointStates, count: int, random: int = 0
) -> np.ndarray:
    """Return the candidates of each point in rising order, ``random`` of them drawn at random; (n, count) int32."""
    atoms = view.model.latents.atoms
    if count == atoms:
        return np.tile(np.arange(atoms, dtype=np.int32), (len(view), 1))
    best = selection.select(context, view, point_states, count - random)
    return add_random_atoms(context, view.block, best, count)


def add_random_atoms(context: Context, block: Block, best: np.ndarray, count: int) -> np.ndarray:
    """Add random atoms to candidates (n, m), m <= count, in rising order; (n, count) int32."""
    random = count - best.shape[1]
    if not random:
        return best
    candidates = np.empty((len(block), count), np.int32)
    candidates[:, : count - random] = best
    uniforms = context.random.uniforms("candidates", block.first, (len(block), random))
    select.add_random(uniforms, context.evaluator.model.latents.atoms, candidates)
    return candidates
