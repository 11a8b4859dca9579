"""A selection that is learned: Gaussian-process regression of the posterior means on the points (TH ch. 4)."""

from collections.abc import Iterator, Mapping
from threading import local
from typing import NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs
from scipy.sparse import csc_array

from parallel_et.core.latent_states import Latents, best, best_places
from parallel_et.core.model import BlockView
from parallel_et.core.posterior import Posterior
from parallel_et.core.scheme import Context, Learner, Selection
from parallel_et.core.types import Block, Param, Params, PointStates, Settings, Statistic, Summary, Sums, Totals
from parallel_et.schemes.selection.candidates import GPOptions, with_random
from parallel_et.schemes.selection.regression import START, Kernel, fitted, pivoted, root_of

FITTED = 256
"""Points by which a kernel is fitted, at most."""
WIDE = 4
"""Points among which pivots are searched, for each of these."""
MOST = 16
"""Largest posterior means that are kept of a point, at least; and for each candidate two."""
LEAST: dict[type, float] = {np.float64: 1e-13, np.float32: 1e-5}
"""Share of the variance for which a pivot is worth it, by the precision of features."""
NEGLIGIBLE = 1e-6
"""Probability that counts as zero."""
SLACK = 1.01
"""Of the bounds of features, which are rounded."""
PIECE = 1 << 20
"""Numbers in windows, or in their features, that are looked at at a time."""


class GPSelection(Selection, Learner):
    """Candidates are the atoms whose probability, as a Gaussian process predicts it from all other points, is largest.

    Predictions are divided by the ``scale`` of their atom, the root of the mean of target times prediction. Where an
    atom is not a candidate its target is zero, whatever it would be. So the targets of an atom that is seldom a
    candidate are too small, and by their size alone it would be so ever more seldom.

    Of a point that is learned from, its own part in the prediction is taken out: with the prediction m, the leverage l
    and the target s that is (m - l s) / (1 - l), the quotient of TH eq. 4.6, from its own row alone.

    Where causes stand at places, a point counts as one for each place: what is regressed is how probably each cause is
    there, on the window that begins there. So an object that was seen at one place is known at all others.

    All points are learned from, also those that a cut leaves out of the M-step of the model. ``weights`` are learned in
    every iteration, from targets that change; after the first, and every T* iterations, so are the ``kernel`` and its
    pivots, by points from all parts of the data, and then the ``gram`` matrix of features. Before that the
    candidates are random, or the model's own.
    """

    stages = ("weights", "kernel", "gram")
    params = {
        **{f"gp_{name}": Param("", f"{name} of the kernel") for name in Kernel._fields},
        "gp_centre": Param("1D", "what is subtracted from points"),
        "gp_state": Param("13", "the unit of points, the iterations before the kernel was made, and how many points"),
        "gp_pivots": Param("QD", "points that others are compared with"),
        "gp_factor": Param("QQ", "what makes features of kernels"),
        "gp_root": Param("QQ", "a root of the inverse of the gram matrix"),
        "gp_weights": Param("QH", "of features in predictions"),
        "gp_scale": Param("1H", "the root of the mean of target times prediction"),
    }

    def __init__(self, options: GPOptions, latents: Latents, candidates: int) -> None:
        self.options, self.atoms, self.windows = options, latents.atoms, latents.windows
        self.places = 1 if self.windows is None else self.windows.places
        self.causes = self.atoms // self.places
        self.most = min(self.atoms, max(MOST, 2 * candidates))

    def initial_params(self, points: int, dims: int) -> Params:
        Q, dims = min(self.options.rank, points), dims if self.windows is None else self.windows.width
        self.sizes = Q, min(points, max(FITTED, WIDE * Q)), min(points, FITTED), dims
        return {
            **{f"gp_{name}": np.array(value) for name, value in START[self.options.kernel]._asdict().items()},
            "gp_centre": np.zeros((1, dims)),
            "gp_state": np.array([[1.0, 0.0, points * self.places]]),
            "gp_pivots": np.zeros((Q, dims)),
            "gp_factor": np.zeros((Q, Q)),
            "gp_root": np.zeros((Q, Q)),
            "gp_weights": np.zeros((Q, self.causes)),
            "gp_scale": np.ones((1, self.causes)),
        }

    def initial_point_states(self, points: int) -> PointStates:
        return {
            "gp_atoms": np.full((points, self.most), -1, np.int32),
            "gp_means": np.zeros((points, self.most), np.float32),
            "gp_leverage": np.zeros((points, self.places), np.float64 if self.windows is None else np.float32),
            "gp_kernel": np.full(points, -1, np.int32),
        }

    # the E-step

    def evaluator(self, params: Params, settings: Settings) -> "Predictor":
        return Predictor(self, params)

    def select(self, context: Context, view: BlockView, point_states: PointStates, count: int) -> np.ndarray:
        chooser = context.of_selection
        assert isinstance(chooser, Predictor)
        if not chooser.number and self.options.first == "own":
            return super().select(context, view, point_states, count)
        if not chooser.number:
            return with_random(context, view.block, np.empty((len(view), 0), np.int32), count)
        predicted = chooser.predict(view.block, point_states)
        if self.windows is None:
            return best(predicted, count)
        return best_places(predicted.reshape(len(view), self.places, self.causes).transpose(0, 2, 1), count)

    def new_point_states(
        self, context: Context, block: Block, posterior: Posterior, point_states: PointStates
    ) -> PointStates:
        chooser = context.of_selection
        assert isinstance(chooser, Predictor)
        atoms, means = chooser.targets(posterior)
        number = np.full(len(block), chooser.number, np.int32)
        leverage = chooser.leverage(block, point_states)
        return {"gp_atoms": atoms, "gp_means": means, "gp_leverage": leverage, "gp_kernel": number}

    # the M-step

    def has_stage(self, stage: str, settings: Settings) -> bool:
        return stage == "weights" or settings.iteration == 0 or (settings.iteration + 1) % self.options.every == 0

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        Q, sample, some, dims = self.sizes
        targets = Statistic((self.causes, Q), lambda params, summary: SLACK * variance(params, summary) ** 0.5)
        if stage == "weights":
            return {"targets": targets}
        if stage == "gram":
            gram = Statistic((Q, Q), lambda params, summary: self.places * SLACK * variance(params, summary))
            return {"targets": targets, "gram": gram}
        rows = Statistic((sample * dims,), lambda params, summary: summary.largest)
        return {"rows": rows, "means": Statistic((some * self.causes,))}

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        if stage == "kernel":
            return self._kernel(params, sums, settings)
        root, state = params["gp_root"], params["gp_state"].copy()
        if stage == "gram":
            root, state[0, 1] = root_of(sums["gram"], float(params["gp_white"])), settings.iteration + 1
        half = root.T @ sums["targets"].T
        scale = np.sqrt((half**2).sum(0, keepdims=True) / state[0, 2])
        scale[scale == 0.0] = 1.0
        return {"gp_root": root, "gp_weights": root @ half, "gp_scale": scale, "gp_state": state}

    def _kernel(self, params: Params, sums: Totals, settings: Settings) -> Params:
        """Kernel and pivots; in the first iteration, whose targets tell little, the kernel is not fitted."""
        Q, sample, few, dims = self.sizes
        rows, means, some = sums["rows"].reshape(sample, dims), sums["means"].reshape(few, -1), spread(few, sample)
        state, centre, kernel = params["gp_state"].copy(), params["gp_centre"], kernel_of(params)
        if not state[0, 1]:
            centre = rows.mean(0, keepdims=True) if self.windows is None else centre  # what is black is zero
            state[0, 0] = median_distance(rows[some])
        points = (rows - centre) / state[0, 0]
        if settings.iteration > 0:
            kernel = fitted(kernel, points[some], means)
        pivots, factor, least = np.zeros((Q, dims)), np.zeros((Q, Q)), LEAST[precision(Q, state)]
        taken, inverse = pivoted(kernel, points, Q, least)
        pivots[: len(taken)], factor[: len(taken), : len(taken)] = points[taken], inverse
        numbers = {f"gp_{name}": np.array(value) for name, value in kernel._asdict().items()}
        return {**numbers, "gp_state": state, "gp_centre": centre, "gp_pivots": pivots, "gp_factor": factor}


class Predictor:
    """The regression with its parameters bound; it caches the results of the last block of each thread.

    Features are in double precision where all points are pivots, as then the regression is to be exact; else in single.
    """

    def __init__(self, selection: GPSelection, params: Params) -> None:
        self.selection = selection
        windows = selection.windows
        (self.unit, number, points), self.kernel = params["gp_state"][0].tolist(), kernel_of(params)
        self.number, self.points, self.windows = int(number), int(points), windows
        self.dtype = precision(len(params["gp_pivots"]), params["gp_state"])
        self.scale = params["gp_scale"][0]
        weights = params["gp_weights"] / self.scale
        values = (params["gp_pivots"], params["gp_factor"], params["gp_root"], weights, params["gp_factor"] @ weights)
        arrays: list[np.ndarray] = [np.asarray(one, self.dtype) for one in values]
        self.pivots, self.factor, self.root, self.weights, self.of_kernels = arrays
        self.centre = params["gp_centre"] if windows is None else 0.0
        self._times = get_blas_funcs("trmm", (self.factor,))  # the factor is triangular
        self._last = local()

    def scaled(self, Y: np.ndarray) -> np.ndarray:
        """Points (n, D) as kernels have them: centred, if they are compared as wholes, and in their unit."""
        points: np.ndarray = np.empty(Y.shape, self.dtype)
        return np.multiply(Y - self.centre, 1 / self.unit, out=points, casting="same_kind")

    def features_of(self, points: np.ndarray) -> np.ndarray:
        """Of scaled points or windows (m, F), (m, Q)."""
        return self._times(1.0, self.factor, self.kernel.between(points, self.pivots).T, trans_a=1).T

    def features(self, block: Block) -> np.ndarray:
        """Of the points of a block, (n, Q)."""
        if getattr(self._last, "rows", None) is not block.rows:
            self._last.rows, self._last.features = block.rows, self.features_of(self.scaled(block.Y))
        return self._last.features

    def pieces(self, block: Block) -> Iterator[np.ndarray]:
        """The scaled windows of the points of a block, those of some of them at a time, (m, F)."""
        assert self.windows is not None
        step = max(1, PIECE // (self.windows.places * max(self.windows.width, len(self.pivots))))
        for first in range(0, len(block), step):
            yield self.windows.of(self.scaled(block.Y[first : first + step]))

    def all_features(self, block: Block) -> Iterator[np.ndarray]:
        """Of the points of a block, or of all their windows, some at a time, (m, Q)."""
        return iter([self.features(block)]) if self.windows is None else map(self.features_of, self.pieces(block))

    def predict(self, block: Block, kept: PointStates) -> np.ndarray:
        """The targets of a block as all other points predict them, over their scale; of new points as all do.

        (n, atoms). A window is left out as a point is where there are none.
        """
        if self.windows is None:
            predicted = self.features(block) @ self.weights
        else:
            predicted = np.concatenate(
                [self.kernel.between(some, self.pivots) @ self.of_kernels for some in self.pieces(block)]
            )
        predicted = predicted.astype(np.float64)
        if kept["gp_kernel"][0] >= 0:  # these are learned from
            leverage = self.leverage(block, kept)
            row, atom, means = Targets(kept["gp_atoms"], kept["gp_means"]).entries()
            place, cause = np.divmod(atom, len(self.scale))
            predicted[row * leverage.shape[1] + place, cause] -= leverage[row, place] * means / self.scale[cause]
            predicted /= 1 - leverage.reshape(-1, 1)
        return predicted.reshape(len(block), -1)

    def leverage(self, block: Block, kept: PointStates) -> np.ndarray:
        """How much the own target of a point, or of each of its windows, counts in its prediction, (n, places)."""
        if not self.number or kept["gp_kernel"][0] == self.number:
            return kept["gp_leverage"]
        if getattr(self._last, "levered", None) is not block.rows:
            found = np.concatenate([((some @ self.root) ** 2).sum(1) for some in self.all_features(block)])
            self._last.levered, self._last.leverage = block.rows, found.reshape(len(block), -1).astype(np.float64)
        return self._last.leverage

    def targets(self, posterior: Posterior) -> "Targets":
        """Return the largest probabilities of atoms of each point; all other probabilities count as zero."""
        if getattr(self._last, "posterior", None) is not posterior:
            active = posterior.active(self.selection.atoms)
            self._last.posterior, self._last.targets = posterior, largest(active, self.selection.most)
        return self._last.targets

    def collect(self, stage: str, block: Block, posterior: Posterior, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of all points of a block to ``total``, also of those that a cut leaves out."""
        row, atom, means = self.targets(posterior).entries()
        place, cause = np.divmod(atom, self.selection.causes)
        if stage == "kernel":
            self._sample(block, (row, place, cause, means), total)
        elif stage == "gram" or self.number:
            if self.windows is None:
                features, number = self.features(block), row
            else:  # of windows whose target is not zero
                there = self.windows.at(self.scaled(block.Y), row, place)
                features, number = self.features_of(there), np.arange(len(row))
            start = np.searchsorted(number, np.arange(len(features) + 1))
            shape = (self.selection.causes, len(features))
            total.add("targets", csc_array((means.astype(self.dtype), cause, start), shape) @ features)
            if stage == "gram":
                total.add("gram", sum((some.T @ some).astype(np.float64) for some in self.all_features(block)))

    def _sample(self, block: Block, entries: tuple[np.ndarray, ...], total: Sums) -> None:
        """Add the points of a block that pivots are chosen from, and targets by which kernels are fitted.

        A point with places contributes the window with the largest probability: most others are empty.
        """
        _, sample, some, _ = self.selection.sizes
        row, place, cause, means = entries
        wide, where = spread(sample, self.points // self.selection.places), np.zeros(len(block), int)
        rising = np.argsort(means, kind="stable")
        where[row[rising]] = place[rising]  # of those of a point the last one stays
        targets, there = np.zeros((len(block), self.selection.causes)), place == where[row]
        targets[row[there], cause[there]] = means[there]
        for name, numbers in (("rows", wide), ("means", wide[spread(some, sample)])):
            first, last = np.searchsorted(numbers, (block.first, block.first + len(block))).tolist()
            here = numbers[first:last] - block.first
            values = targets[here]
            if name == "rows":
                values = block.Y[here] if self.windows is None else self.windows.at(block.Y, here, where[here])
            total.add(name, values, first * values.shape[1])


class Targets(NamedTuple):
    """Of each point the atoms that may be active, (n, places), then -1; and their probabilities (n, places)."""

    atoms: np.ndarray
    means: np.ndarray

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row, atom and probability of all that are not zero, (m,) each."""
        row, place = nonzero(self.atoms >= 0)
        return row, self.atoms[row, place], self.means[row, place]


def largest(active: np.ndarray, places: int) -> Targets:
    """Of probabilities (n, atoms) the largest, in rising order of the atoms."""
    row, atom = nonzero(active > NEGLIGIBLE)
    full = np.bincount(row, minlength=len(active)) > places
    if full.any():
        some = best(active[full], places)
        active = active.copy()
        kept = np.take_along_axis(active[full], some, 1)
        active[full] = 0.0
        active[np.flatnonzero(full)[:, None], some] = kept
        row, atom = nonzero(active > NEGLIGIBLE)
    place = np.arange(len(row)) - np.searchsorted(row, np.arange(len(active)))[row]
    targets = Targets(np.full((len(active), places), -1, np.int32), np.zeros((len(active), places), np.float32))
    targets.atoms[row, place], targets.means[row, place] = atom, active[row, atom]
    return targets


def spread(count: int, of: int) -> np.ndarray:
    """So many numbers below another, evenly, (count,)."""
    return np.arange(count) * of // count


def nonzero(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of what is true in a table (n, m), in rising order; numpy's own takes seven times as long."""
    row, column = np.divmod(np.flatnonzero(table), table.shape[1])
    return row, column


def kernel_of(params: Params) -> Kernel:
    """The kernel among the parameters."""
    return Kernel(*(float(params[f"gp_{name}"]) for name in Kernel._fields))


def precision(Q: int, state: np.ndarray) -> type:
    """Of features: double if all points are pivots."""
    return np.float64 if state[0, 2] == Q else np.float32


def variance(params: Params, summary: Summary) -> float:
    """The most that a kernel of a point with itself can be."""
    reach = (summary.largest + float(np.abs(params["gp_centre"]).max())) / float(params["gp_state"][0, 0])
    return float(params["gp_linear"] * params["gp_centre"].size * reach**2 + params["gp_rbf"] + params["gp_bias"])


def median_distance(points: np.ndarray) -> float:
    """Of all pairs of points (m, D); 1 if half of them are equal."""
    points = points - points.mean(0)
    products = points @ points.T
    norms = np.diag(products)
    squares = (norms[:, None] + norms - 2 * products)[np.triu_indices(len(points), 1)]
    middle = float(np.median(squares)) if len(squares) else 0.0
    return middle**0.5 if middle > 1e-12 * norms.max() else 1.0
