"""What all mixtures share: exactly one of C clusters is active (TV Alg. 2)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parallel_et.core.contract import UNUSED, Block, Knobs, Model, Param, Params, Sum, Summary, Totals
from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.core.states import Latents, Table, best
from parallel_et.kernels import mixture, truncated
from parallel_et.kernels.rows import aligned, pad_rows, padded
from parallel_et.models.parts.priors import EDGE, Categorical
from parallel_et.models.parts.rounding import far

PI = Param("H", "weights of the clusters, which add up to 1", low=EDGE / 2, high=1.0)
SINGLE = 2.0**-24
"""Relative error of rounding to single precision."""
SAFE, WIDE = 1e15, 1e18
"""Scores, and what they are the products of, up to which single precision is trusted; and by so little at least."""
PIECE = 1 << 17
"""Numbers in single precision that are compared at a time, points times clusters: what stays in the cache."""
NONE = (1.0, np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1))
"""The words of a statistic that there is none of."""


@dataclass(frozen=True)
class Form:
    """How log joints are computed: of single pairs by a form of the kernels, of all by a product with features.

    Attributes
    ----------
    form : of the kernels
    table : (C, width), what they compare a point with
    scale : (C,) or (C width,), flat
    bias : (C,)
    weights : features -> log joints, in groups (C, k); that of a group is the part of log p that its features make
    features : (n, width) points -> the same groups (n, k) of them; the last is the constant 1
    whiten : (n, width) points -> (n, D) those that all of this is of, if they are others
    """

    form: int
    table: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    weights: tuple[np.ndarray, ...]
    features: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    whiten: Callable[[np.ndarray], np.ndarray] | None = None

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Points (n, width) as all below takes them."""
        return rows if self.whiten is None else pad_rows(self.whiten(rows))

    def log_states(self, rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Of points and the clusters (n, K) that are listed for each, (n, K); -inf where one is negative."""
        logs = np.empty(clusters.shape)
        mixture.joints(self.form, rows, self.table, self.scale, self.bias, clusters, logs)
        return logs

    def log_singles(self, rows: np.ndarray) -> np.ndarray:
        """Of points and all clusters, (n, C)."""
        groups = self.features(rows)
        logs = side_by_side(groups) @ self._weights.T
        with np.errstate(over="ignore", invalid="ignore"):
            some = far(sum(row_lengths(group) * most for group, most in zip(groups, self._longest, strict=True)))
        if len(some):
            every = np.tile(np.arange(len(self.bias), dtype=np.int32), (len(some), 1))
            logs[some] = self.log_states(np.ascontiguousarray(rows[some]), every)
        return logs

    def nearest(self, rows: np.ndarray, count: int) -> np.ndarray:
        """The ``count`` clusters of largest joint, in rising order, (n, count); of equal ones those of lower index."""
        groups, weights = self.features(rows), self._upper
        lengths = [row_lengths(group) for group in groups]
        most = [length.max(initial=0.0) for length in lengths]
        if weights is None or not (max(most) < WIDE and sum(np.multiply(most, self._longest)) < SAFE):
            return best(self.log_singles(rows), count)
        candidates = np.empty((len(rows), count), np.int32)
        features = side_by_side([*groups, np.stack(lengths, 1)], np.float32)
        step = min(len(rows), max(16, PIECE // len(self.bias)))
        room = aligned((step, len(self.bias)), np.float32)
        for first in range(0, len(rows), step):
            some = features[first : first + step]
            upper = np.matmul(some, weights.T, out=room[: len(some)])
            mixture.nearest(upper, self.form, rows, self.table, self.scale, self.bias, candidates, first)
        return candidates

    @cached_property
    def _weights(self) -> np.ndarray:
        return side_by_side(self.weights)

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Of the weights of each group and cluster, (C, groups)."""
        return np.stack([row_lengths(group) for group in self.weights], 1)

    @cached_property
    def _longest(self) -> np.ndarray:
        return self._lengths.max(0)

    @cached_property
    def _upper(self) -> np.ndarray | None:
        """Weights in single precision of which, with the lengths of the groups as features, come upper bounds.

        A product of k numbers is wrong by k + 2 roundings of the sum of all magnitudes at most, and that is below the
        product of two lengths, group by group. None where the numbers are too large for that.
        """
        if self._longest.max() >= WIDE:
            return None
        roundings = 1.02 * (sum(group.shape[1] for group in self.weights) + len(self.weights) + 4) * SINGLE
        margin = roundings * self._lengths
        margin[:, -1] += 1 / SAFE  # what is too small for single precision adds less than this
        return side_by_side([*self.weights, margin], np.float32)


def row_lengths(table: np.ndarray) -> np.ndarray:
    """Return the Euclidean length of each row of a table (n, k), (n,)."""
    return np.sqrt(np.einsum("nk,nk->n", table, table))


def side_by_side(groups: Any, dtype: Any = np.float64) -> np.ndarray:
    """Tables (n, k) in one, padded with zeros."""
    width = sum(group.shape[1] for group in groups)
    table, at = aligned((len(groups[0]), padded(width)), dtype), 0
    for group in groups:
        table[:, at : at + group.shape[1]] = group
        at += group.shape[1]
    table[:, at:] = 0.0
    return table


@dataclass(frozen=True)
class Ready:
    """Of one iteration: the parameters, what is subtracted from points in the sums (C, width), and the form."""

    params: Params
    origin: np.ndarray
    form: Any


@dataclass(frozen=True)
class Seen:
    """Of a block: its points (n, width) as the form takes them, and what is the same for all clusters, (n, 1) or 0."""

    rows: np.ndarray
    base: Any = 0.0


class Mixture(Model):
    """Exactly one of the clusters is active; K_n are the C' of largest joint, or all.

    Sums are of q_nc, of q_nc (y_n - origin_c), and what ``sums_besides`` has: differences keep the digits of clusters
    that are small beside their distance from zero.
    """

    prior: Categorical
    first_job = {
        "data": {"source": "clusters", "points": 1000, "clusters": 10, "dims": 10},
        "inference": {"scheme": "exact"},
        "anneal": {"temperature": 1.0},
    }

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.latents = Categorical(), Latents(self.H, 1, 1)

    def start(self, name: str, summary: Summary) -> tuple[Any, float]:
        return (1 / self.H, 0.0) if name == "pi" else super().start(name, summary)

    def constrain(self, params: Params) -> Params:
        inside = dict(super().constrain(params))
        if "pi" in inside and abs(inside["pi"].sum() - 1) > 1e-9:
            inside |= super().constrain({"pi": inside["pi"] / inside["pi"].sum()})
        return inside

    def nanoseconds(self, states: int) -> float:
        return 0.04 * self.H * self.D + 0.5 * self.D * min(states, 20)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return params["W"].T[states[..., 0]]

    # the E-step

    def observe(self, ready: Ready, block: Block, singles: bool) -> Seen:
        return Seen(ready.form.seen(block.rows))

    def log_singles(self, ready: Ready, block: Block) -> np.ndarray:
        return self._log_all(ready, self.observe(ready, block, True))

    def _log_all(self, ready: Ready, seen: Seen) -> np.ndarray:
        return ready.form.log_singles(seen.rows) + seen.base

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        return ready.form.nearest(seen.rows, count)

    def log_states(self, ready: Ready, seen: Seen, states: np.ndarray) -> np.ndarray:
        """log p(s, y_n) of states (n, K, 1) that are listed for each point, (n, K); -inf where there is none."""
        logs = ready.form.log_states(seen.rows, np.ascontiguousarray(states[..., 0]))
        return logs + seen.base if np.ndim(seen.base) else logs

    def over_table(
        self, ready: Ready, seen: Seen, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> Tabled:
        everything = singles or candidates.shape[1] == self.H
        logs = self._log_all(ready, seen) if everything else self.log_states(ready, seen, candidates[..., None])
        evidence = np.empty(len(logs))
        truncated.weigh(logs, beta, evidence)
        q = logs
        if singles:
            q = np.take_along_axis(logs, candidates, 1)
            np.put_along_axis(logs, candidates, 0.0, 1)
        return Tabled(evidence, candidates, table, Sparse.of(q), Sparse.of(logs if singles else logs[:, :0]))

    def reconstruct(self, ready: Ready, params: Params, posterior: Any) -> np.ndarray:
        return self.decode(params, posterior.means(self.H))

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        return active @ params["W"].T

    # the M-step

    def sums(self, stage: str) -> Mapping[str, Sum]:
        gaps = Sum((self.H * self.width,), lambda params, summary: self.reach(params, summary))
        return {"active": Sum((self.H,)), "gaps": gaps, **self.sums_besides()}

    def reach(self, params: Params, summary: Summary) -> float:
        """The most that a point can be away from an origin in a dimension."""
        return summary.largest + float(np.abs(params["W"]).max())

    def sums_besides(self) -> dict[str, Sum]:
        """Further statistics; one of squares (C width,) or (C,), called so, is added up here."""
        return {}

    def collect(self, stage: str, ready: Ready, block: Block, posterior: Any, used: np.ndarray, total: Any) -> None:
        clusters, q = self._weights(posterior)
        members = mixture.by_cluster(clusters, *q, used, self.H)
        squares = total.words("squares") if "squares" in self.sums(stage) else NONE
        words = (*total.words("active"), *total.words("gaps"), *squares)
        mixture.add_clusters(block.rows, ready.origin, *members, *words)
        self.collect_besides(ready, block, members, used, total)

    def collect_besides(self, ready: Ready, block: Block, members: Any, used: np.ndarray, total: Any) -> None:
        """Add what else ``sums_besides`` has; ``members`` are the weights sorted by cluster."""

    def _weights(self, posterior: Listed | Tabled) -> tuple[np.ndarray, Sparse]:
        """Clusters (n, K), and the weights of those that matter."""
        if isinstance(posterior, Listed):
            return np.ascontiguousarray(posterior.states[..., 0]), posterior.q
        if len(posterior.alone.value):
            everything = np.tile(np.arange(self.H, dtype=np.int32), (len(posterior.evidence), 1))
            return everything, Sparse.of(posterior.means(self.H))
        return posterior.candidates, posterior.q

    def carried(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        move = (self.origin(new) - self.origin(old)).T
        gaps = sums["gaps"].reshape(self.H, self.width)[:, : self.D]
        moved = sums["gaps"].copy()
        moved.reshape(self.H, self.width)[:, : self.D] -= sums["active"][:, None] * move
        return {"gaps": moved, **self.carried_besides(sums, gaps, old, move)}

    def carried_besides(self, sums: Totals, gaps: np.ndarray, old: Params, move: np.ndarray) -> Totals:
        """What ``sums_besides`` has, of origins that were moved by (C, D); ``gaps`` (C, D) were summed before that."""
        return {}

    def maximise(self, stage: str, params: Params, sums: Totals, knobs: Knobs, summary: Summary) -> Params:
        points, active = float(sums["points"]), sums["active"]
        used = active > UNUSED * points
        gaps = sums["gaps"].reshape(self.H, self.width)[:, : self.D]
        W = params["W"]
        if "W" in self.options.learn:
            step = gaps / np.where(used, active, 1.0)[:, None]
            W = np.where(used, self.origin(params) + step.T, W)
            W = self.constrain({"W": W})["W"]
        pi = self.prior.learn(params, active, points, knobs)
        return {"W": W, "pi": pi, **self.maximise_besides(params, W, gaps, sums, used, summary)}

    def origin(self, params: Params) -> np.ndarray:
        """What is subtracted from the points of a cluster, (D, C)."""
        return params["W"]

    def maximise_besides(
        self, params: Params, W: np.ndarray, gaps: np.ndarray, sums: Totals, used: np.ndarray, summary: Summary
    ) -> Params:
        """Other parameters, given the new W, the sums of gaps (C, D) and which clusters have points, (C,) bool."""
        return {}


def each_cluster(members: tuple[np.ndarray, ...]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Of the weights that are sorted by cluster: each that has any, its points and their weights."""
    starts, points, values = members
    for c in np.flatnonzero(np.diff(starts[:-1])).tolist():
        some = slice(starts[c], starts[c + 1])
        yield c, points[some], values[some]
