"""What all mixtures share: exactly one of C clusters is active (TV Alg. 2)."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from parallel_et.core.latent_states import Latents, Table, best
from parallel_et.core.model import UNUSED, EnumeratingView, Evaluator, Model
from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.core.types import Block, Param, Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import mixture, truncated
from parallel_et.kernels.rows import aligned, pad_rows, padded
from parallel_et.models.components.fields import rows_of
from parallel_et.models.components.priors import EDGE, Categorical
from parallel_et.models.components.rounding import far

PI = Param("H", "weights of the clusters, which add up to 1", low=EDGE / 2, high=1.0)
SINGLE = 2.0**-24
"""Relative error of rounding to single precision."""
SAFE, WIDE = 1e15, 1e18
"""Scores, and what they are the products of, up to which single precision is trusted; and by so little at least."""
PIECE = 1 << 17
"""Numbers in single precision that are compared at a time, points times clusters: what stays in the cache."""
NONE = (np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1))
"""The words of a statistic that there is none of."""
Members = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Weights sorted by cluster: where each cluster starts (C + 2,), points and weights."""


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


class JointForm(Protocol):
    """A way to compute the log joints of points and clusters, up to a part that all clusters share."""

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Return points (n, width) as the other methods take them."""

    def log_states(self, rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Return those of clusters (n, K) listed for each point, (n, K); -inf where a cluster is negative."""

    def log_singles(self, rows: np.ndarray) -> np.ndarray:
        """Return those of all clusters, (n, C)."""

    def nearest(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Return the ``count`` clusters of largest joint in rising order, (n, count); of equal ones the lower index."""


class MixtureEvaluator(Evaluator):
    """A mixture with its parameters bound.

    Attributes
    ----------
    origin : (C, width) subtracted from the points of each cluster in the statistics
    form : the computation of log joints
    """

    model: "Mixture"

    def __init__(self, model: "Mixture", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        self.origin = rows_of({"W": model.origin(params)})
        self.form = model.form(params)


class MixtureView(EnumeratingView):
    """A block of points under a mixture."""

    model: "Mixture"
    evaluator: MixtureEvaluator

    @cached_property
    def points(self) -> np.ndarray:
        """The points as the form takes them, (n, width)."""
        return self.evaluator.form.seen(self.block.rows)

    @cached_property
    def base(self) -> np.ndarray | float:
        """Part of the log joint that all clusters share, (n, 1) or 0."""
        return 0.0

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        logs = self.evaluator.form.log_states(self.points, np.ascontiguousarray(states[..., 0]))
        return logs + self.base if np.ndim(self.base) else logs

    def log_singles(self) -> np.ndarray:
        return self.evaluator.form.log_singles(self.points) + self.base

    def select(self, count: int) -> np.ndarray:
        return self.evaluator.form.nearest(self.points, count)

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Tabled:
        singles, everything = self.singles, self.singles or candidates.shape[1] == self.model.H
        logs = self.log_singles() if everything else self.log_joint(candidates[..., None])
        evidence = np.empty(len(logs))
        truncated.weigh(logs, beta, evidence)
        q = logs
        if singles:
            q = np.take_along_axis(logs, candidates, 1)
            np.put_along_axis(logs, candidates, 0.0, 1)
        return Tabled(evidence, candidates, table, Sparse.of(q), Sparse.of(logs if singles else logs[:, :0]))

    def reconstruct(self, posterior: Listed | Tabled) -> np.ndarray:
        return self.model.decode(self.evaluator.params, posterior.means(self.model.H))

    def accumulate(self, stage: str, posterior: Listed | Tabled, used: np.ndarray, total: Sums) -> None:
        model, by = self.model, self.evaluator
        clusters, q = cluster_weights(posterior, model.H)
        members = mixture.by_cluster(clusters, *q, used, model.H)
        squares = total.words("squares") if "squares" in model.statistics(stage) else NONE
        words = (*total.words("active"), *total.words("gaps"), *squares)
        mixture.add_clusters(self.block.rows, by.origin, *members, *words)
        model.collect_besides(by.params, self.block, members, used, total)


class Mixture(Model):
    """Exactly one of the clusters is active; K_n are the C' of largest joint, or all.

    Sums are of q_nc, of q_nc (y_n - origin_c), and what ``sums_besides`` has: differences keep the digits of clusters
    that are small beside their distance from zero.
    """

    View: ClassVar[type[MixtureView]] = MixtureView
    prior: Categorical
    first_job = {
        "data": {"source": "clusters", "points": 1000, "clusters": 10, "dims": 10},
        "inference": {"scheme": "exact"},
        "anneal": {"temperature": 1.0},
    }

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.prior, self.latents = Categorical(), Latents(self.H, 1, 1)

    def evaluator(self, params: Params, settings: Settings) -> MixtureEvaluator:
        return MixtureEvaluator(self, params, settings)

    @abstractmethod
    def form(self, params: Params) -> JointForm:
        """Return the computation of log joints."""

    def initial_value(self, name: str, summary: Summary) -> tuple[Any, float]:
        return (1 / self.H, 0.0) if name == "pi" else super().initial_value(name, summary)

    def constrain(self, params: Params) -> Params:
        inside = dict(super().constrain(params))
        if "pi" in inside and abs(inside["pi"].sum() - 1) > 1e-9:
            inside |= super().constrain({"pi": inside["pi"] / inside["pi"].sum()})
        return inside

    def nanoseconds(self, states: int) -> float:
        return 0.04 * self.H * self.D + 0.5 * self.D * min(states, 20)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return params["W"].T[states[..., 0]]

    def decode(self, params: Params, active: np.ndarray) -> np.ndarray:
        return active @ params["W"].T

    # the M-step

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        gaps = Statistic((self.H, self.width), lambda params, summary: self.reach(params, summary))
        return {"active": Statistic((self.H,)), "gaps": gaps, **self.sums_besides()}

    def reach(self, params: Params, summary: Summary) -> np.ndarray:
        """The most that a point can be away from an origin in each dimension, (width,)."""
        return np.full(self.width, summary.largest + np.abs(params["W"]).max())

    def sums_besides(self) -> dict[str, Statistic]:
        """Further statistics; one of squares (C, width) or (C,), called so, is added up here."""
        return {}

    def collect_besides(self, params: Params, block: Block, members: Members, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of ``sums_besides`` other than squares."""

    def carried(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        move = (self.origin(new) - self.origin(old)).T
        gaps = sums["gaps"][:, : self.D]
        moved = sums["gaps"].copy()
        moved[:, : self.D] -= sums["active"][:, None] * move
        return {"gaps": moved, **self.carried_besides(sums, gaps, old, move)}

    def carried_besides(self, sums: Totals, gaps: np.ndarray, old: Params, move: np.ndarray) -> Totals:
        """What ``sums_besides`` has, of origins that were moved by (C, D); ``gaps`` (C, D) were summed before that."""
        return {}

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        points, active = float(sums["points"]), sums["active"]
        used = active > UNUSED * points
        gaps = sums["gaps"][:, : self.D]
        W = params["W"]
        if "W" in self.options.learn:
            step = gaps / np.where(used, active, 1.0)[:, None]
            W = np.where(used, self.origin(params) + step.T, W)
            W = self.constrain({"W": W})["W"]
        pi = self.prior.learn(params, active, points, settings)
        return {"W": W, "pi": pi, **self.maximise_besides(params, W, gaps, sums, used, summary)}

    def origin(self, params: Params) -> np.ndarray:
        """What is subtracted from the points of a cluster, (D, C)."""
        return params["W"]

    def maximise_besides(
        self, params: Params, W: np.ndarray, gaps: np.ndarray, sums: Totals, used: np.ndarray, summary: Summary
    ) -> Params:
        """Other parameters, given the new W, the sums of gaps (C, D) and which clusters have points, (C,) bool."""
        return {}


def cluster_weights(posterior: Listed | Tabled, clusters: int) -> tuple[np.ndarray, Sparse]:
    """Return clusters (n, K) of each point, and the weights that are not negligible."""
    if isinstance(posterior, Listed):
        return np.ascontiguousarray(posterior.states[..., 0]), posterior.q
    if len(posterior.alone.value):
        everything = np.tile(np.arange(clusters, dtype=np.int32), (len(posterior.evidence), 1))
        return everything, Sparse.of(posterior.means(clusters))
    return posterior.candidates, posterior.q


def each_cluster(members: Members) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each cluster with weights, its points and their weights."""
    starts, points, values = members
    for c in np.flatnonzero(np.diff(starts[:-1])).tolist():
        some = slice(starts[c], starts[c + 1])
        yield c, points[some], values[some]
