"""A trainable selection: Gaussian-process regression of the posterior means on the points (TH ch. 4)."""

from collections.abc import Iterator, Mapping
from threading import local
from typing import NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs
from scipy.sparse import csc_array

from parallel_et.core.latent_states import Latents, best_atoms, best_places
from parallel_et.core.model import BlockView
from parallel_et.core.posterior import Posterior
from parallel_et.core.scheme import Context, Selection, TrainablePart
from parallel_et.core.types import Block, Param, Params, PointStates, Settings, Statistic, Summary, Sums, Totals
from parallel_et.schemes.selection.candidates import GPOptions, add_random_atoms
from parallel_et.schemes.selection.regression import INITIAL_KERNELS, Kernel, choose_pivots, fit_kernel, root_of

FIT_POINTS = 256
"""Largest number of points to which a kernel is fitted."""
POINTS_PER_PIVOT = 4
"""Number of points for each pivot among which pivots are searched."""
MIN_TARGETS = 16
"""Smallest number of stored posterior means per point, or two per candidate if that is more."""
MIN_PIVOT_VARIANCE: dict[type, float] = {np.float64: 1e-13, np.float32: 1e-5}
"""Smallest variance of a pivot given earlier pivots, relative to the largest variance, by the precision of features."""
NEGLIGIBLE_PROBABILITY = 1e-6
"""Probability that counts as zero."""
ROUNDING_FACTOR = 1.01
"""Factor of the bounds of features, because features are rounded."""
VALUES_AT_ONCE = 1 << 20
"""Number of values of windows, or of their features, that are computed at a time."""


class GPSelection(Selection, TrainablePart):
    """The preselection of the atoms with the largest probabilities, predicted from all other points.

    The targets of the regression are the posterior probabilities of the atoms. An atom that is not a candidate has the
    target 0, so targets of an atom that is rarely a candidate are too small. Predictions are therefore divided by the
    ``scale`` of the atom, the root of the mean of target times prediction.

    The prediction for a training point leaves out the target of the point. With the prediction m, the leverage l and
    the target s it is (m - l s) / (1 - l). This is the quotient of TH eq. 4.6, computed from the row of the point.

    If causes have positions, a point counts as one point per position. The target is then the probability of each cause
    at the position, and the input is the window at the position. An object that was seen at one position is thus known
    at all positions.

    All points are used, also the points that a cut excludes from the M-step of the model. Every iteration learns the
    ``weights``. The first iteration, and then every T*-th, also learns the ``kernel`` with its pivots and the ``gram``
    matrix of features. Before the first kernel the candidates are random, or those of the model.
    """

    stages = ("weights", "kernel", "gram")
    params = {
        **{f"gp_{name}": Param("", f"{name} of the kernel") for name in Kernel._fields},
        "gp_centre": Param("1D", "vector that is subtracted from points"),
        "gp_state": Param("13", "unit of points, number of iterations at the last fit of the kernel, number of points"),
        "gp_pivots": Param("QD", "pivots, the points that all points are compared with"),
        "gp_factor": Param("QQ", "matrix that converts kernels into features"),
        "gp_root": Param("QQ", "root of the inverse of the gram matrix"),
        "gp_weights": Param("QH", "weights of features in predictions"),
        "gp_scale": Param("1H", "root of the mean of target times prediction"),
    }

    def __init__(self, options: GPOptions, latents: Latents, candidates: int) -> None:
        self.options, self.atoms, self.windows = options, latents.atoms, latents.windows
        self.places = 1 if self.windows is None else self.windows.places
        self.causes = self.atoms // self.places
        self.max_active = min(self.atoms, max(MIN_TARGETS, 2 * candidates))

    def initial_params(self, points: int, dims: int) -> Params:
        Q, dims = min(self.options.rank, points), dims if self.windows is None else self.windows.width
        self.sizes = Q, min(points, max(FIT_POINTS, POINTS_PER_PIVOT * Q)), min(points, FIT_POINTS), dims
        return {
            **{f"gp_{name}": np.array(value) for name, value in INITIAL_KERNELS[self.options.kernel]._asdict().items()},
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
            "gp_atoms": np.full((points, self.max_active), -1, np.int32),
            "gp_means": np.zeros((points, self.max_active), np.float32),
            "gp_leverage": np.zeros((points, self.places), np.float64 if self.windows is None else np.float32),
            "gp_kernel": np.full(points, -1, np.int32),
        }

    # the E-step

    def evaluator(self, params: Params, settings: Settings) -> "Predictor":
        return Predictor(self, params)

    def select(self, context: Context, view: BlockView, point_states: PointStates, count: int) -> np.ndarray:
        predictor = context.selection_evaluator
        assert isinstance(predictor, Predictor)
        if not predictor.number and self.options.first == "own":
            return super().select(context, view, point_states, count)
        if not predictor.number:
            return add_random_atoms(context, view.block, np.empty((len(view), 0), np.int32), count)
        predicted = predictor.predict(view.block, point_states)
        if self.windows is None:
            return best_atoms(predicted, count)
        return best_places(predicted.reshape(len(view), self.places, self.causes).transpose(0, 2, 1), count)

    def new_point_states(
        self, context: Context, block: Block, posterior: Posterior, point_states: PointStates
    ) -> PointStates:
        predictor = context.selection_evaluator
        assert isinstance(predictor, Predictor)
        atoms, means = predictor.targets(posterior)
        number = np.full(len(block), predictor.number, np.int32)
        leverage = predictor.leverage(block, point_states)
        return {"gp_atoms": atoms, "gp_means": means, "gp_leverage": leverage, "gp_kernel": number}

    # the M-step

    def has_stage(self, stage: str, settings: Settings) -> bool:
        return stage == "weights" or settings.iteration == 0 or (settings.iteration + 1) % self.options.every == 0

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        Q, sample, some, dims = self.sizes
        targets = Statistic(
            (self.causes, Q), lambda params, summary: ROUNDING_FACTOR * variance(params, summary) ** 0.5
        )
        if stage == "weights":
            return {"targets": targets}
        if stage == "gram":
            gram = Statistic((Q, Q), lambda params, summary: self.places * ROUNDING_FACTOR * variance(params, summary))
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
        """Return a new kernel and pivots. The first iteration fits no kernel, because targets are uninformative."""
        Q, sample, few, dims = self.sizes
        rows, means, some = sums["rows"].reshape(sample, dims), sums["means"].reshape(few, -1), spread(few, sample)
        state, centre, kernel = params["gp_state"].copy(), params["gp_centre"], kernel_of(params)
        if not state[0, 1]:
            centre = rows.mean(0, keepdims=True) if self.windows is None else centre  # black is zero
            state[0, 0] = median_distance(rows[some])
        points = (rows - centre) / state[0, 0]
        if settings.iteration > 0:
            kernel = fit_kernel(kernel, points[some], means)
        pivots, factor, least = np.zeros((Q, dims)), np.zeros((Q, Q)), MIN_PIVOT_VARIANCE[precision(Q, state)]
        taken, inverse = choose_pivots(kernel, points, Q, least)
        pivots[: len(taken)], factor[: len(taken), : len(taken)] = points[taken], inverse
        numbers = {f"gp_{name}": np.array(value) for name, value in kernel._asdict().items()}
        return {**numbers, "gp_state": state, "gp_centre": centre, "gp_pivots": pivots, "gp_factor": factor}


class Predictor:
    """The regression with its parameters bound. It caches the results of the last block of each thread.

    Features have double precision if all points are pivots, so that the regression is exact; else single precision.
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
        self.pivots, self.factor, self.root, self.weights, self.kernel_weights = arrays
        self.centre = params["gp_centre"] if windows is None else 0.0
        self._times = get_blas_funcs("trmm", (self.factor,))  # the factor is triangular
        self._last = local()

    def scaled(self, Y: np.ndarray) -> np.ndarray:
        """Return points (n, D) as inputs of kernels: in their unit, and centred unless there are windows."""
        points: np.ndarray = np.empty(Y.shape, self.dtype)
        return np.multiply(Y - self.centre, 1 / self.unit, out=points, casting="same_kind")

    def features_of(self, points: np.ndarray) -> np.ndarray:
        """Return the features of scaled points or windows (m, F), (m, Q)."""
        return self._times(1.0, self.factor, self.kernel.between(points, self.pivots).T, trans_a=1).T

    def features(self, block: Block) -> np.ndarray:
        """Return the features of the points of a block, (n, Q)."""
        if getattr(self._last, "rows", None) is not block.rows:
            self._last.rows, self._last.features = block.rows, self.features_of(self.scaled(block.Y))
        return self._last.features

    def pieces(self, block: Block) -> Iterator[np.ndarray]:
        """Yield the scaled windows of the points of a block, of some points at a time, (m, F)."""
        assert self.windows is not None
        step = max(1, VALUES_AT_ONCE // (self.windows.places * max(self.windows.width, len(self.pivots))))
        for first in range(0, len(block), step):
            yield self.windows.all_values(self.scaled(block.Y[first : first + step]))

    def all_features(self, block: Block) -> Iterator[np.ndarray]:
        """Return the features of the points of a block, or of all their windows, in pieces (m, Q)."""
        return iter([self.features(block)]) if self.windows is None else map(self.features_of, self.pieces(block))

    def predict(self, block: Block, point_states: PointStates) -> np.ndarray:
        """Return the scaled predictions for a block from all other points, (n, atoms).

        New points are predicted from all training points. With windows, the prediction leaves out a window.
        """
        if self.windows is None:
            predicted = self.features(block) @ self.weights
        else:
            predicted = np.concatenate(
                [self.kernel.between(some, self.pivots) @ self.kernel_weights for some in self.pieces(block)]
            )
        predicted = predicted.astype(np.float64)
        if point_states["gp_kernel"][0] >= 0:  # training points
            leverage = self.leverage(block, point_states)
            row, atom, means = Targets(point_states["gp_atoms"], point_states["gp_means"]).entries()
            place, cause = np.divmod(atom, len(self.scale))
            predicted[row * leverage.shape[1] + place, cause] -= leverage[row, place] * means / self.scale[cause]
            predicted /= 1 - leverage.reshape(-1, 1)
        return predicted.reshape(len(block), -1)

    def leverage(self, block: Block, point_states: PointStates) -> np.ndarray:
        """Return the leverage of each point or window, the weight of its target in its prediction, (n, places)."""
        if not self.number or point_states["gp_kernel"][0] == self.number:
            return point_states["gp_leverage"]
        if getattr(self._last, "leverage_rows", None) is not block.rows:
            found = np.concatenate([((some @ self.root) ** 2).sum(1) for some in self.all_features(block)])
            self._last.leverage_rows, self._last.leverage = block.rows, found.reshape(len(block), -1).astype(np.float64)
        return self._last.leverage

    def targets(self, posterior: Posterior) -> "Targets":
        """Return the largest probabilities of atoms of each point; all other probabilities count as zero."""
        if getattr(self._last, "posterior", None) is not posterior:
            active = posterior.active(self.selection.atoms)
            self._last.posterior, self._last.targets = posterior, largest(active, self.selection.max_active)
        return self._last.targets

    def collect(self, stage: str, block: Block, posterior: Posterior, used: np.ndarray, total: Sums) -> None:
        """Add the statistics of all points of a block to ``total``, also points that a cut excludes."""
        row, atom, means = self.targets(posterior).entries()
        place, cause = np.divmod(atom, self.selection.causes)
        if stage == "kernel":
            self._sample(block, (row, place, cause, means), total)
        elif stage == "gram" or self.number:
            if self.windows is None:
                features, number = self.features(block), row
            else:  # features of the windows with non-zero targets
                there = self.windows.values_at(self.scaled(block.Y), row, place)
                features, number = self.features_of(there), np.arange(len(row))
            start = np.searchsorted(number, np.arange(len(features) + 1))
            shape = (self.selection.causes, len(features))
            total.add("targets", csc_array((means.astype(self.dtype), cause, start), shape) @ features)
            if stage == "gram":
                total.add("gram", sum((some.T @ some).astype(np.float64) for some in self.all_features(block)))

    def _sample(self, block: Block, entries: tuple[np.ndarray, ...], total: Sums) -> None:
        """Add the points of a block that are candidates for pivots, and the targets to which kernels are fitted.

        A point with positions contributes the window with the largest probability: most others are empty.
        """
        _, sample, some, _ = self.selection.sizes
        row, place, cause, means = entries
        wide, where = spread(sample, self.points // self.selection.places), np.zeros(len(block), int)
        rising = np.argsort(means, kind="stable")
        where[row[rising]] = place[rising]  # the last value of each point is the largest
        targets, there = np.zeros((len(block), self.selection.causes)), place == where[row]
        targets[row[there], cause[there]] = means[there]
        for name, numbers in (("rows", wide), ("means", wide[spread(some, sample)])):
            first, last = np.searchsorted(numbers, (block.first, block.first + len(block))).tolist()
            here = numbers[first:last] - block.first
            values = targets[here]
            if name == "rows":
                values = block.Y[here] if self.windows is None else self.windows.values_at(block.Y, here, where[here])
            total.add(name, values, first * values.shape[1])


class Targets(NamedTuple):
    """The atoms of each point that may be active, (n, m), padded with -1, and their probabilities (n, m)."""

    atoms: np.ndarray
    means: np.ndarray

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return row, atom and probability of all entries, (m,) each."""
        row, place = nonzero(self.atoms >= 0)
        return row, self.atoms[row, place], self.means[row, place]


def largest(active: np.ndarray, places: int) -> Targets:
    """Return the largest of the probabilities (n, atoms) of each point, in rising order of the atoms."""
    row, atom = nonzero(active > NEGLIGIBLE_PROBABILITY)
    full = np.bincount(row, minlength=len(active)) > places
    if full.any():
        some = best_atoms(active[full], places)
        active = active.copy()
        kept = np.take_along_axis(active[full], some, 1)
        active[full] = 0.0
        active[np.flatnonzero(full)[:, None], some] = kept
        row, atom = nonzero(active > NEGLIGIBLE_PROBABILITY)
    place = np.arange(len(row)) - np.searchsorted(row, np.arange(len(active)))[row]
    targets = Targets(np.full((len(active), places), -1, np.int32), np.zeros((len(active), places), np.float32))
    targets.atoms[row, place], targets.means[row, place] = atom, active[row, atom]
    return targets


def spread(count: int, of: int) -> np.ndarray:
    """Return ``count`` evenly spread indices below ``of``, (count,)."""
    return np.arange(count) * of // count


def nonzero(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the true entries of a table (n, m), seven times as fast as ``np.nonzero``."""
    row, column = np.divmod(np.flatnonzero(table), table.shape[1])
    return row, column


def kernel_of(params: Params) -> Kernel:
    """Return the kernel in the parameters."""
    return Kernel(*(float(params[f"gp_{name}"]) for name in Kernel._fields))


def precision(Q: int, state: np.ndarray) -> type:
    """Return the type of features: float64 if all points are pivots."""
    return np.float64 if state[0, 2] == Q else np.float32


def variance(params: Params, summary: Summary) -> float:
    """Return the largest possible kernel of a point with itself."""
    reach = (summary.largest + float(np.abs(params["gp_centre"]).max())) / float(params["gp_state"][0, 0])
    return float(params["gp_linear"] * params["gp_centre"].size * reach**2 + params["gp_rbf"] + params["gp_bias"])


def median_distance(points: np.ndarray) -> float:
    """Return the median distance of all pairs of points (m, D); 1 if half of the pairs are equal."""
    points = points - points.mean(0)
    products = points @ points.T
    norms = np.diag(products)
    squares = (norms[:, None] + norms - 2 * products)[np.triu_indices(len(points), 1)]
    middle = float(np.median(squares)) if len(squares) else 0.0
    return middle**0.5 if middle > 1e-12 * norms.max() else 1.0
