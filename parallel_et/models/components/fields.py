"""Operations on fields: lookup by states, products with points, scores of candidates."""

import numpy as np

from parallel_et.core.latent_states import binary
from parallel_et.core.types import Param, Params
from parallel_et.kernels import select
from parallel_et.kernels.rows import aligned, pad_rows

W = Param("DH", "generative fields, one for each cause")


def divide_or_keep(total: np.ndarray, weight: np.ndarray, least: float, old: np.ndarray) -> np.ndarray:
    """Return total / weight where the weight is above ``least``, and the ``old`` values elsewhere."""
    known = weight > least
    return np.where(known, total / np.where(known, weight, 1.0), old)


def sums_by_atom(states: np.ndarray, values: np.ndarray, atoms: int) -> np.ndarray:
    """Return for each atom the sum of values (m, ...) over the states (m, g) that contain it, (atoms, ...)."""
    return np.tensordot(binary(states, atoms).astype(np.float64), values, (0, 0))


def with_empty_row(table: np.ndarray, none: float = 0.0) -> np.ndarray:
    """Append a row of ``none`` to a table (atoms, ...), so that padded states index it: -1 is the last row."""
    return np.concatenate([table, np.full_like(table[:1], none)])


def rows_of(params: Params, name: str = "W") -> np.ndarray:
    """Return fields as rows (H, width), padded for the kernels."""
    return pad_rows(params[name].T)


def all_products(Y: np.ndarray, WT: np.ndarray) -> np.ndarray:
    """Return Y W of a block Y (n, width) and fields as rows (H, width), (n, H)."""
    return np.matmul(Y, WT.T, out=aligned((len(Y), len(WT))))


def overshoot(Y: np.ndarray, WT: np.ndarray) -> np.ndarray:
    """Return the log selection function of ET eq. 28 up to a factor, for fields that must stay below y, (n, H)."""
    scores = np.empty((len(Y), len(WT)))
    select.overshoot(Y, WT, scores)
    return scores


def overshoot_of_counts(Y: np.ndarray, WT: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Return ``overshoot`` for Poisson noise, up to a term of y; ``WT`` and its ``logs`` are (H, width); (n, H)."""
    from parallel_et.kernels import counts  # loaded only by jobs with counts

    scores = np.empty((len(Y), len(WT)))
    counts.overshoot(Y, WT, logs, scores)
    return scores


def best_below(
    scores: np.ndarray, count: int, Y: np.ndarray, factors: np.ndarray, precision: float, bias: np.ndarray
) -> np.ndarray:
    """Return the ``count`` causes with the largest scores (n, H), in ascending order, (n, count) int32.

    Fields that lie completely below a point have equal scores.
    Such ties go to the larger log joint of the single cause, ``precision`` Y . ``factors`` + ``bias`` up to a constant.
    Further ties go to the lower index.
    """
    candidates = np.empty((len(scores), count), np.int32)
    select.largest_by_joint(scores, Y, factors, precision, np.ascontiguousarray(bias), candidates)
    return candidates


def block_norms(Y: np.ndarray) -> np.ndarray:
    """Return |y_n|^2 of a block, (n,)."""
    norms = np.empty(len(Y))
    select.square_norms(Y, norms)
    return norms
