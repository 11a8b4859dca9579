"""The E-step and the M-step of mixtures: exactly one of C clusters is active (TV Alg. 2)."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from parallel_et.core.latent_states import Latents, Table, best_atoms
from parallel_et.core.model import UNUSED, EnumeratingView, Evaluator, Model
from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.core.types import Block, Param, Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.kernels import mixture, truncated
from parallel_et.kernels.rows import aligned, pad_rows, padded
from parallel_et.models.components.fields import rows_of
from parallel_et.models.components.priors import MIN_PROBABILITY, Categorical
from parallel_et.models.components.rounding import imprecise_points

PI = Param("H", "weights of the clusters, with the sum 1", low=MIN_PROBABILITY / 2, high=1.0)
SINGLE_PRECISION_ROUNDING = 2.0**-24
"""Relative error of rounding to single precision."""
MAX_SINGLE_SCORE = 1e15
"""Largest score that is computed in single precision."""
MAX_SINGLE_FACTOR = 1e18
"""Largest factor of a score in single precision."""
TILE_NUMBERS = 1 << 17
"""Points times clusters of a chunk of scores in single precision, which fits in the cache."""
NO_STATISTIC = (np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1))
"""Words of a statistic that a model does not have."""
Memberships = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Weights sorted by cluster: the start of each cluster (C + 2,), points and weights."""


@dataclass(frozen=True)
class FeatureDensity:
    """A density whose logarithm is linear in features of a point.

    Kernels compute the log joints of single pairs, and a matrix product with the features those of all pairs.

    Attributes
    ----------
    kernel_form : LINEAR, ROUND or ALONG of the kernels
    table : (C, width) the table that kernels compare points with
    scale : (C,) or (C width,), flat
    bias : (C,)
    weights : groups (C, k) of coefficients of the features
    features : function from points (n, width) to the same groups of features (n, k); the last feature is the constant 1
    whiten : function from points (n, width) to the transformed points (n, D) of this density, or None
    """

    kernel_form: int
    table: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    weights: tuple[np.ndarray, ...]
    features: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    whiten: Callable[[np.ndarray], np.ndarray] | None = None

    def transform(self, rows: np.ndarray) -> np.ndarray:
        """Return points (n, width) as the other methods take them."""
        return rows if self.whiten is None else pad_rows(self.whiten(rows))

    def log_states(self, rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Return the log joints of clusters (n, K) listed for each point, (n, K); -inf for negative clusters."""
        logs = np.empty(clusters.shape)
        mixture.joints(self.kernel_form, rows, self.table, self.scale, self.bias, clusters, logs)
        return logs

    def log_singletons(self, rows: np.ndarray) -> np.ndarray:
        """Return the log joints of all clusters, (n, C)."""
        groups = self.features(rows)
        logs = side_by_side(groups) @ self._weights.T
        with np.errstate(over="ignore", invalid="ignore"):
            some = imprecise_points(
                sum(row_lengths(group) * most for group, most in zip(groups, self._longest, strict=True))
            )
        if len(some):
            every = np.tile(np.arange(len(self.bias), dtype=np.int32), (len(some), 1))
            logs[some] = self.log_states(np.ascontiguousarray(rows[some]), every)
        return logs

    def most_probable(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Return the ``count`` clusters with the largest joints, in ascending order, (n, count); ties: lower index."""
        groups, weights = self.features(rows), self._upper
        lengths = [row_lengths(group) for group in groups]
        most = [length.max(initial=0.0) for length in lengths]
        if weights is None or not (
            max(most) < MAX_SINGLE_FACTOR and sum(np.multiply(most, self._longest)) < MAX_SINGLE_SCORE
        ):
            return best_atoms(self.log_singletons(rows), count)
        candidates = np.empty((len(rows), count), np.int32)
        features = side_by_side([*groups, np.stack(lengths, 1)], np.float32)
        step = min(len(rows), max(16, TILE_NUMBERS // len(self.bias)))
        scratch = aligned((step, len(self.bias)), np.float32)
        for first in range(0, len(rows), step):
            some = features[first : first + step]
            upper = np.matmul(some, weights.T, out=scratch[: len(some)])
            mixture.best_clusters(upper, self.kernel_form, rows, self.table, self.scale, self.bias, candidates, first)
        return candidates

    @cached_property
    def _weights(self) -> np.ndarray:
        return side_by_side(self.weights)

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Lengths of the weights of each group and cluster, (C, groups)."""
        return np.stack([row_lengths(group) for group in self.weights], 1)

    @cached_property
    def _longest(self) -> np.ndarray:
        return self._lengths.max(0)

    @cached_property
    def _upper(self) -> np.ndarray | None:
        """Weights in single precision for upper bounds of log joints, or None if numbers are too large.

        The lengths of the groups are further features, with the largest rounding error as their weights.
        A product of k numbers has an error of at most k + 2 roundings of the sum of all magnitudes.
        The product of two lengths bounds this sum, group by group.
        """
        if self._longest.max() >= MAX_SINGLE_FACTOR:
            return None
        roundings = (
            1.02 * (sum(group.shape[1] for group in self.weights) + len(self.weights) + 4) * SINGLE_PRECISION_ROUNDING
        )
        margin = roundings * self._lengths
        margin[:, -1] += 1 / MAX_SINGLE_SCORE  # bounds the values that underflow in single precision
        return side_by_side([*self.weights, margin], np.float32)


def row_lengths(table: np.ndarray) -> np.ndarray:
    """Return the Euclidean length of each row of a table (n, k), (n,)."""
    return np.sqrt(np.einsum("nk,nk->n", table, table))


def side_by_side(groups: Any, dtype: Any = np.float64) -> np.ndarray:
    """Join tables (n, k) in one, padded with zeros."""
    width = sum(group.shape[1] for group in groups)
    table = aligned((len(groups[0]), padded(width)), dtype)
    start = 0
    for group in groups:
        stop = start + group.shape[1]
        table[:, start:stop] = group
        start = stop
    table[:, start:] = 0.0
    return table


class ClusterDensity(Protocol):
    """A computation of the log joints of points and clusters, up to a term that all clusters share."""

    def transform(self, rows: np.ndarray) -> np.ndarray:
        """Return points (n, width) as the other methods take them."""

    def log_states(self, rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Return the log joints of clusters (n, K) listed for each point, (n, K); -inf for negative clusters."""

    def log_singletons(self, rows: np.ndarray) -> np.ndarray:
        """Return the log joints of all clusters, (n, C)."""

    def most_probable(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Return the ``count`` clusters with the largest joints, in ascending order, (n, count); ties: lower index."""


class MixtureEvaluator(Evaluator):
    """A mixture with its parameters bound.

    Attributes
    ----------
    origin : (C, width) vectors that the statistics subtract from the points of each cluster
    density : the density of the clusters
    """

    model: "Mixture"

    def __init__(self, model: "Mixture", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        self.origin = rows_of({"W": model.origin(params)})
        self.density = model.density(params)


class MixtureView(EnumeratingView):
    """A block of points under a mixture."""

    model: "Mixture"
    evaluator: MixtureEvaluator

    @cached_property
    def points(self) -> np.ndarray:
        """Points as the density takes them, (n, width)."""
        return self.evaluator.density.transform(self.block.rows)

    @cached_property
    def base(self) -> np.ndarray | float:
        """Term of the log joint that all clusters share, (n, 1) or 0."""
        return 0.0

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        logs = self.evaluator.density.log_states(self.points, np.ascontiguousarray(states[..., 0]))
        return logs + self.base if np.ndim(self.base) else logs

    def log_singletons(self) -> np.ndarray:
        return self.evaluator.density.log_singletons(self.points) + self.base

    def select(self, count: int) -> np.ndarray:
        return self.evaluator.density.most_probable(self.points, count)

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Tabled:
        singletons, everything = self.singletons, self.singletons or candidates.shape[1] == self.model.H
        logs = self.log_singletons() if everything else self.log_joint(candidates[..., None])
        evidence = np.empty(len(logs))
        truncated.weigh(logs, beta, evidence)
        q = logs
        if singletons:
            q = np.take_along_axis(logs, candidates, 1)
            np.put_along_axis(logs, candidates, 0.0, 1)
        return Tabled(evidence, candidates, table, Sparse.of(q), Sparse.of(logs if singletons else logs[:, :0]))

    def reconstruct(self, posterior: Listed | Tabled) -> np.ndarray:
        return self.model.decode(self.evaluator.params, posterior.means(self.model.H))

    def accumulate(self, stage: str, posterior: Listed | Tabled, used: np.ndarray, total: Sums) -> None:
        model, by = self.model, self.evaluator
        clusters, q = cluster_weights(posterior, model.H)
        memberships = mixture.weights_by_cluster(clusters, *q, used, model.H)
        squares = total.words("squares") if "squares" in model.statistics(stage) else NO_STATISTIC
        words = (*total.words("active"), *total.words("gaps"), *squares)
        mixture.add_moments(self.block.rows, by.origin, *memberships, *words)
        model.accumulate_extra(by.params, self.block, memberships, used, total)


class Mixture(Model):
    """A model with exactly one active cluster per point. K_n contains the C' clusters with the largest joint, or all.

    The statistics are the sums of q_nc and of q_nc (y_n - origin_c), and ``extra_statistics``.
    Differences keep the digits of clusters that are small compared with their distance from zero.
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
    def density(self, params: Params) -> ClusterDensity:
        """Return the density of the clusters."""

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
        gaps = Statistic((self.H, self.width), lambda params, summary: self.largest_gap(params, summary))
        return {"active": Statistic((self.H,)), "gaps": gaps, **self.extra_statistics()}

    def largest_gap(self, params: Params, summary: Summary) -> np.ndarray:
        """Return the largest distance of a point from an origin in each dimension, (width,)."""
        return np.full(self.width, summary.largest + np.abs(params["W"]).max())

    def extra_statistics(self) -> dict[str, Statistic]:
        """Return further statistics. ``squares``, (C, width) or (C,), is accumulated by the view."""
        return {}

    def accumulate_extra(
        self, params: Params, block: Block, memberships: Memberships, used: np.ndarray, total: Sums
    ) -> None:
        """Add the statistics of ``extra_statistics`` except ``squares``."""

    def adjust_sums(self, stage: str, sums: Totals, old: Params, new: Params) -> Totals:
        move = (self.origin(new) - self.origin(old)).T
        gaps = sums["gaps"][:, : self.D]
        moved = sums["gaps"].copy()
        moved[:, : self.D] -= sums["active"][:, None] * move
        return {"gaps": moved, **self.adjust_extra_sums(sums, gaps, old, move)}

    def adjust_extra_sums(self, sums: Totals, gaps: np.ndarray, old: Params, move: np.ndarray) -> Totals:
        """Return the extra statistics for origins that have moved by ``move`` (C, D); ``gaps`` (C, D) are old."""
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
        return {"W": W, "pi": pi, **self.maximise_extra(params, W, gaps, sums, used, summary)}

    def origin(self, params: Params) -> np.ndarray:
        """Return the vectors that the statistics subtract from the points of each cluster, (D, C)."""
        return params["W"]

    def maximise_extra(
        self, params: Params, W: np.ndarray, gaps: np.ndarray, sums: Totals, used: np.ndarray, summary: Summary
    ) -> Params:
        """Return further parameters from the new W, the sums of gaps (C, D) and the ``used`` clusters (C,) bool."""
        return {}


def cluster_weights(posterior: Listed | Tabled, clusters: int) -> tuple[np.ndarray, Sparse]:
    """Return the clusters (n, K) of each point, and their non-negligible weights."""
    if isinstance(posterior, Listed):
        return np.ascontiguousarray(posterior.states[..., 0]), posterior.q
    if len(posterior.singletons.value):
        everything = np.tile(np.arange(clusters, dtype=np.int32), (len(posterior.evidence), 1))
        return everything, Sparse.of(posterior.means(clusters))
    return posterior.candidates, posterior.q


def each_cluster(memberships: Memberships) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each cluster with weights, its points and their weights."""
    starts, points, values = memberships
    for c in np.flatnonzero(np.diff(starts[:-1])).tolist():
        some = slice(starts[c], starts[c + 1])
        yield c, points[some], values[some]
