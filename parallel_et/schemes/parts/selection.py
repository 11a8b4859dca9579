"""How a scheme that preselects comes to its candidates: the keys of [inference] for it, and what they name."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.contract import Block, EStep, Kept, Selection
from parallel_et.core.options import SchemeOptions
from parallel_et.core.schema import MOST, Section
from parallel_et.core.states import Latents
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

    def select(self, step: EStep, block: Block, seen: Any, kept: Kept, count: int) -> np.ndarray:
        return with_random(step, block, np.empty((len(block), 0), np.int32), count)


def selection_of(options: Any, latents: Latents, count: int) -> Selection:
    """The selection of ``count`` candidates that the keys of [inference] name."""
    name = getattr(options, "selection", "own")
    if name == "own" or count >= latents.atoms:
        return Selection()
    if name == "random":
        return Random()
    from parallel_et.schemes.parts.gp import GPSelection  # loads an optimiser

    return GPSelection(options.gp, latents, count)


def chosen(
    selection: Selection, step: EStep, block: Block, seen: Any, kept: Kept, count: int, random: int = 0
) -> np.ndarray:
    """The candidates of each point, in rising order, so many of them drawn at random; (n, count) int32."""
    atoms = step.model.latents.atoms
    if count == atoms:
        return np.tile(np.arange(atoms, dtype=np.int32), (len(block), 1))
    return with_random(step, block, selection.select(step, block, seen, kept, count - random), count)


def with_random(step: EStep, block: Block, best: np.ndarray, count: int) -> np.ndarray:
    """The candidates (n, less), in rising order, and others at random that make them ``count``."""
    random = count - best.shape[1]
    if not random:
        return best
    candidates = np.empty((len(block), count), np.int32)
    candidates[:, : count - random] = best
    uniforms = step.random.uniforms("candidates", block.first, (len(block), random))
    select.add_random(uniforms, step.model.latents.atoms, candidates)
    return candidates
