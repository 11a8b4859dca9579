"""Fields, and what is computed of them for many states or points at once."""

import numpy as np

from parallel_et.core.contract import Param, Params
from parallel_et.core.states import binary
from parallel_et.core.terms import Deal, alone
from parallel_et.kernels import counts, select
from parallel_et.kernels.rows import aligned, pad_rows, padded

W = Param("DH", "generative fields, one for each cause")


def sums_by_atom(states: np.ndarray, values: np.ndarray, atoms: int) -> np.ndarray:
    """Sum of the values (m, ...) over the states (m, g) that have an atom, for each; (atoms, ...)."""
    return np.tensordot(binary(states, atoms).astype(np.float64), values, (0, 0))


def with_none(table: np.ndarray, none: float = 0.0) -> np.ndarray:
    """A table of one row an atom, (atoms, ...), with one more for none, by which states are looked up as they are."""
    return np.concatenate([table, np.full_like(table[:1], none)])


def rows_of(params: Params, name: str = "W", deal: Deal = alone) -> np.ndarray:
    """Fields as rows, padded as the kernels like them: (H, width); those of many ranks in a room."""
    fields = params[name].T
    H, D = fields.shape
    if deal.size == 1 and fields.flags.c_contiguous and padded(D) == D:
        return pad_rows(fields)
    room = deal.room("fields", (H, padded(D)))

    def copy(first: int, last: int) -> None:
        room[first:last, :D], room[first:last, D:] = fields[first:last], 0.0

    deal.here(H, copy)
    return room


def all_products(Y: np.ndarray, WT: np.ndarray) -> np.ndarray:
    """Y W of a block Y (n, width) and the fields as rows, (n, H)."""
    return np.matmul(Y, WT.T, out=aligned((len(Y), len(WT))))


def overshoot(Y: np.ndarray, WT: np.ndarray) -> np.ndarray:
    """Log of the selection function of ET eq. 28 up to a factor, for fields that must stay below y; (n, H)."""
    scores = np.empty((len(Y), len(WT)))
    select.overshoot(Y, WT, scores)
    return scores


def overshoot_of_counts(Y: np.ndarray, WT: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """As ``overshoot`` for Poisson noise, up to a term of y alone; fields and their logarithms (H, width); (n, H)."""
    scores = np.empty((len(Y), len(WT)))
    counts.overshoot(Y, WT, logs, scores)
    return scores


def best_below(
    scores: np.ndarray, count: int, Y: np.ndarray, factors: np.ndarray, precision: float, bias: np.ndarray
) -> np.ndarray:
    """The ``count`` causes with the largest scores (n, H), in rising order; (n, count) int32.

    All fields that lie wholly below a point tie. Of these the causes with the larger log joint as the only cause are
    taken, which is ``precision`` Y . ``factors`` + ``bias`` up to a constant; of equal ones those of lower index.
    """
    candidates = np.empty((len(scores), count), np.int32)
    select.largest_by_joint(scores, Y, factors, precision, np.ascontiguousarray(bias), candidates)
    return candidates


def block_norms(Y: np.ndarray) -> np.ndarray:
    """|y_n|^2 of a block, (n,)."""
    norms = np.empty(len(Y))
    select.square_norms(Y, norms)
    return norms
