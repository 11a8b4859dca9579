"""Fields, and what is computed of them for many states or points at once."""

import numpy as np

from parallel_et.core.latent_states import binary
from parallel_et.core.types import Param, Params
from parallel_et.kernels import select
from parallel_et.kernels.rows import aligned, pad_rows

W = Param("DH", "generative fields, one for each cause")


def divided(total: np.ndarray, weight: np.ndarray, least: float, old: np.ndarray) -> np.ndarray:
    """Return total / weight where the weight is above the ``least``, and the ``old`` values elsewhere."""
    known = weight > least
    return np.where(known, total / np.where(known, weight, 1.0), old)


def sums_by_atom(states: np.ndarray, values: np.ndarray, atoms: int) -> np.ndarray:
    """Sum of the values (m, ...) over the states (m, g) that have an atom, for each; (atoms, ...)."""
    return np.tensordot(binary(states, atoms).astype(np.float64), values, (0, 0))


def with_none(table: np.ndarray, none: float = 0.0) -> np.ndarray:
    """A table of one row an atom, (atoms, ...), with one more for none, by which states are looked up as they are."""
    return np.concatenate([table, np.full_like(table[:1], none)])


def rows_of(params: Params, name: str = "W") -> np.ndarray:
    """Return fields as rows (H, width), padded for the kernels."""
    return pad_rows(params[name].T)


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
    from parallel_et.kernels import counts  # models of counts import it first: only their jobs load it

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
