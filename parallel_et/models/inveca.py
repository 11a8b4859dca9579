"""Invariant exclusive component analysis (InvECA): objects at any position in an image occlude each other.

    p(s, x, order) = prod_h (pi_h / places)^s_h (1 - pi_h)^(1 - s_h) / |s|!
    a_hi ~ Bernoulli(W_hi),    y_p ~ Gauss(T_hi, sigma^2 I),    h the nearest object with a_hi = 1 at pixel p = x_h + i

A pixel without an opaque object is black. Images are periodic: their edges are connected.
The opacities a are summed over in closed form, so EM is exact.
The model suits images in which the same small objects occur at different positions.
"""

from collections.abc import Mapping
from functools import cached_property
from math import isqrt
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.fft import irfft2, rfft2
from scipy.special import gammaln

from parallel_et.core.latent_states import Latents, Table, best_places
from parallel_et.core.model import UNUSED, EnumeratingView, Evaluator, Model
from parallel_et.core.options import ModelOptions
from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.core.types import Param, Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.core.windows import Windows
from parallel_et.errors import UserError
from parallel_et.kernels import inveca, truncated
from parallel_et.kernels.rows import aligned, padded
from parallel_et.models.components.fields import block_norms, with_empty_row
from parallel_et.models.components.noises import SIGMA, Gauss
from parallel_et.models.components.priors import MIN_PROBABILITY, PI, Ordered
from parallel_et.models.components.windows import typical_windows

MAX_SIDE_PIXELS = 64
"""Largest side of an object in pixels: a kernel multiplies size^2 / 8 numbers of up to 2."""
LOG_PROBABILITY_OUTSIDE = -1e4
"""Log probability that a padding pixel of an object is opaque."""
CORRELATION_BYTES = 1 << 21
"""Memory in bytes of the correlations of one chunk of points."""
WINDOWS_PER_OBJECT = 48
"""Number of points per object from which initial features are taken, one window per point."""


class InvECAOptions(ModelOptions):
    """The keys of [model] for inveca."""

    size: int = Field(10, ge=1, le=MAX_SIDE_PIXELS, description="pixels per side of an object")
    rows: int | None = Field(
        None, ge=1, le=10_000, description="number of rows of an image; by default images are square"
    )
    channels: int = Field(
        3, ge=1, le=1000, description="number of values per pixel, adjacent in a point: 3 for colours"
    )


class InvECAEvaluator(Evaluator):
    """InvECA with its parameters bound.

    Attributes
    ----------
    opaque : (H, wide) log W of all pixels of each object
    clear : (H, wide) log(1 - W)
    features : (H, C, wide)
    orders : (H + 1,) T log m!, because the prior of an order is 1 / m! at any temperature
    odds : (H,) or (1,) log odds that an object is active
    empty : log joint of no active object and a point of zeros
    precision : 1 / sigma^2
    patterns : (C + 1, H, rows, columns // 2 + 1) conjugate Fourier transforms of the correlated images
    offset : (H,) added to the correlations
    """

    model: "InvECA"

    def __init__(self, model: "InvECA", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        variance, W = float(params["sigma"]) ** 2, params["W"].T
        features = params["T"].T.reshape(model.H, model.object_pixels, model.channels).transpose(0, 2, 1)
        self.opaque = model.pad_pixels(np.log(W), LOG_PROBABILITY_OUTSIDE)
        self.clear = model.pad_pixels(np.log1p(-W))
        self.features = model.pad_pixels(features)
        self.orders = settings.temperature * gammaln(np.arange(model.H + 1) + 1.0)
        self.odds = np.atleast_1d(model.prior.odds(params))
        self.empty = model.prior.empty(params) - 0.5 * model.D * np.log(2 * np.pi * variance)
        self.precision = 1 / variance
        patterns = np.zeros((model.channels + 1, model.H, *model.grid))
        shape = (model.H, model.size, model.size)
        for c in range(model.channels):
            patterns[c, :, : model.size, : model.size] = (2 * W * features[:, c]).reshape(shape)
        patterns[-1, :, : model.size, : model.size] = W.reshape(shape)
        self.patterns = np.conj(rfft2(patterns))
        self.offset = -np.einsum("hp,hcp->h", W, features**2)

    def kernel_terms(self, Y: np.ndarray, base: np.ndarray) -> tuple[Any, ...]:
        """Return the first arguments of the kernels of log joints; ``base`` (n,) contains those of the empty state."""
        parts = (self.opaque, self.clear, self.features)
        return Y, *self.model.grid, self.model.size, *parts, base, self.odds, self.orders, self.precision

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y), (...). The prior of orders is raised to T, so annealing does not change this prior."""
        shape, D = np.broadcast_shapes(Y.shape[:-1], states.shape[:-1]), self.model.D
        flat = np.ascontiguousarray(np.broadcast_to(Y, (*shape, D))).reshape(-1, D)
        listed = np.ascontiguousarray(np.broadcast_to(states, (*shape, states.shape[-1])), np.int32)
        base = self.empty - 0.5 * self.precision * np.einsum("nd,nd->n", flat, flat)
        logs = np.empty((len(flat), 1))
        inveca.log_states(*self.kernel_terms(flat, base), listed.reshape(len(flat), 1, -1), logs)
        return logs.reshape(shape)


class InvECAView(EnumeratingView):
    """A block of points under InvECA."""

    model: "InvECA"
    evaluator: InvECAEvaluator

    @cached_property
    def base(self) -> np.ndarray:
        """Log joint of the empty state, (n,)."""
        return self.evaluator.empty - 0.5 * self.evaluator.precision * block_norms(self.block.rows)

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        logs = np.empty(states.shape[:2])
        inveca.log_states(*self.evaluator.kernel_terms(self.block.rows, self.base), states, logs)
        return logs

    def log_singletons(self) -> np.ndarray:
        states = np.arange(self.model.latents.atoms, dtype=np.int32)[None, :, None]
        logs = np.empty((len(self), self.model.latents.atoms))
        for n in range(len(self)):
            one = slice(n, n + 1)
            inveca.log_states(*self.evaluator.kernel_terms(self.block.rows[one], self.base[one]), states, logs[one])
        return logs

    def scores(self) -> np.ndarray:
        """Return the fit of each object at each place, (n, H, places): sum_i W_i (min(|y|^2, 2 sigma^2) - |y - T_i|^2).

        Any other explanation of a pixel is assumed to cost at most 2 sigma^2.
        Bright positions therefore do not attract dark objects. The sums are computed as correlations.
        """
        model, by = self.model, self.evaluator
        images = self.block.rows[:, : model.D].reshape(-1, model.places, model.channels)
        energy = np.einsum("npc,npc->np", images, images)
        planes = np.empty((len(images), model.channels + 1, *model.grid))
        planes[:, :-1] = images.transpose(0, 2, 1).reshape(len(images), model.channels, *model.grid)
        planes[:, -1] = (np.minimum(energy, 2 / by.precision) - energy).reshape(-1, *model.grid)
        waves = rfft2(planes)
        product = waves[:, 0, None] * by.patterns[0]
        for c in range(1, model.channels + 1):
            product += waves[:, c, None] * by.patterns[c]
        found = irfft2(product, s=model.grid, overwrite_x=True).reshape(len(images), model.H, model.places)
        return found + by.offset[:, None]

    def select(self, count: int) -> np.ndarray:
        """Return the objects with the best fit, each at its best position; beyond H candidates also other positions."""
        n, step = len(self), max(1, CORRELATION_BYTES // (16 * self.model.H * self.model.places))
        candidates = np.empty((n, count), np.int32)
        for first in range(0, n, step):
            some = slice(first, min(first + step, n))
            candidates[some] = best_places(self.subset(some).scores(), count)
        return candidates

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Tabled:
        n, K = len(candidates), len(table)
        logs, order = np.empty((n, K)), np.lexsort(table.members.T[::-1])
        terms = self.evaluator.kernel_terms(self.block.rows, self.base)
        inveca.log_table(*terms, candidates, table.members, table.size, order, logs)
        if self.singletons:
            singletons = self.log_singletons()
            np.put_along_axis(singletons, candidates, -np.inf, 1)  # these are in the table
            logs = np.hstack([logs, singletons])
        evidence = np.empty(n)
        truncated.weigh(logs, beta, evidence)
        return Tabled(evidence, candidates, table, *map(Sparse.of, np.split(logs, [K], 1)))

    def accumulate(self, stage: str, posterior: Tabled | Listed, used: np.ndarray, total: Sums) -> None:
        model, by, rows = self.model, self.evaluator, self.block.rows
        point, states, q = posterior.pairs(used)
        names, declared = ("numerator", "shown", "passed", "active"), model.statistics(stage)
        found = [np.zeros(declared[name].shape) for name in names]
        parts = (by.opaque, by.clear, by.features)
        states = np.ascontiguousarray(states, np.int32)
        inveca.weighted_sums(rows, *model.grid, model.size, *parts, by.precision, point, states, q, *found)
        for name, values in zip(names, found, strict=True):
            total.add(name, values)
        total.add("square", block_norms(rows)[used].sum())


class InvECA(Model):
    """Objects with masks W and features T at any position; a pixel shows its nearest active opaque object.

    A state lists its atoms from the farthest to the nearest.
    Atom h + x H is object h with its upper left corner at pixel x.
    """

    Options = InvECAOptions
    View: ClassVar[type[InvECAView]] = InvECAView
    grid: tuple[int, int]
    prior: Ordered
    noise: Gauss
    first_job = {
        "model": {"size": 5},
        "data": {"overlap": "nearest", "colours": "hues"},
        "anneal": {"iterations": 50, "temperature": 1.0},
    }
    params = {
        "W": Param(
            "PH",
            "masks: probability that a pixel of an object is opaque",
            low=MIN_PROBABILITY,
            high=1 - MIN_PROBABILITY,
        ),
        "T": Param("FH", "features: the values of each pixel of an object", rows="random"),
        "sigma": SIGMA,
        "pi": PI,
    }

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.size, self.channels = options.size, options.channels
        pixels = max(1, dims // self.channels)
        rows = options.rows or max(1, isqrt(pixels))
        self.grid = (rows, max(1, pixels // rows))
        self.object_pixels, self.places = self.size**2, self.grid[0] * self.grid[1]
        self.padded_pixels = padded(self.object_pixels)
        self.sizes = {**self.sizes, "P": self.object_pixels, "F": self.object_pixels * self.channels}
        places = max(self.places, self.object_pixels)  # ``check`` refuses images that are smaller than an object
        self.windows = Windows(self.grid, self.size, self.channels)
        self.latents = Latents(self.H * places, ordered=True, owner=tuple(range(self.H)) * places, windows=self.windows)
        self.prior, self.noise = Ordered(self.H, self.places), Gauss()

    def evaluator(self, params: Params, settings: Settings) -> InvECAEvaluator:
        return InvECAEvaluator(self, params, settings)

    def pad_pixels(self, table: np.ndarray, rest: float = 0.0) -> np.ndarray:
        """Return a table of the pixels of objects (..., P) padded with ``rest`` for the kernels, (..., wide)."""
        found = aligned((*table.shape[:-1], self.padded_pixels))
        found[..., : self.object_pixels], found[..., self.object_pixels :] = table, rest
        return found

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        if "W" not in arrays or "T" not in arrays:
            return {}
        return {"size": isqrt(len(arrays["W"])), "channels": len(arrays["T"]) // max(1, len(arrays["W"]))}

    def check(self, summary: Summary) -> None:
        rows, columns = self.grid
        if self.places * self.channels != summary.dims or (self.options.rows is None and rows != columns):
            expected = f"images of {rows} rows" if self.options.rows else "square images, or model.rows,"
            found = f"{summary.dims} values per point"
            raise UserError(f"data: expected {expected} of {self.channels} values per pixel, found {found}")
        if min(self.grid) < self.size:
            found = f"{self.size} in images of {rows} x {columns} pixels"
            raise UserError(f"model.size: expected objects that fit into the images, found {found}")

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        return (0.5, 0.0) if name == "W" else (0.0, summary.rms or 1.0)

    def points_for_fields(self) -> int:
        return WINDOWS_PER_OBJECT * self.H

    def fields_from_points(self, points: np.ndarray) -> np.ndarray:
        """Return H different windows of the points that each show an isolated object, (F, H)."""
        images = points.T.reshape(-1, *self.grid, self.channels)
        return typical_windows(images, self.size, self.H).reshape(self.H, -1).T

    def nanoseconds(self, states: int) -> float:
        return 1.0 * self.object_pixels * states + 10.0 * self.H * self.places

    def cause_images(self, params: Params) -> np.ndarray:
        """Return each object alone at the upper left corner of an image as a point, (D, H)."""
        objects = params["T"].reshape(self.size, self.size, self.channels, self.H)
        images = np.zeros((*self.grid, self.channels, self.H))
        images[: self.size, : self.size] = params["W"].reshape(self.size, self.size, 1, self.H) * objects
        return images.reshape(self.D, self.H)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return self._layers(params["W"].T, params, states)

    def _layers(self, masks: np.ndarray, params: Params, states: np.ndarray) -> np.ndarray:
        """Return images (..., D) of states (..., g), from masks of objects (H, P) or of layers (..., g, P)."""
        flat = states.reshape(-1, states.shape[-1])
        features = with_empty_row(params["T"].T.reshape(self.H, self.object_pixels, self.channels))
        images = np.zeros((len(flat), self.places, self.channels))
        each = masks.reshape(*flat.shape, -1) if masks.ndim > 2 else None
        rows = np.arange(len(flat))[:, None]
        for place in range(flat.shape[1]):
            cause = np.where(flat[:, place] >= 0, flat[:, place] % self.H, -1)
            mask = with_empty_row(masks)[cause] if each is None else each[:, place] * (cause >= 0)[:, None]
            pixels = self.windows.pixels(np.maximum(flat[:, place], 0) // self.H)
            images[rows, pixels] += mask[..., None] * (features[cause] - images[rows, pixels])
        return images.reshape(*states.shape[:-1], self.D)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        states = self.prior.draw(params, rng, count)
        masks = with_empty_row(params["W"].T)[np.where(states >= 0, states % self.H, -1)]
        images = self._layers((rng.random(masks.shape) < masks).astype(np.float64), params, states)
        return self.noise.draw(params, rng, images), states

    # the M-step

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        return {
            "numerator": Statistic(
                (self.H, self.channels, self.padded_pixels), lambda params, summary: summary.largest
            ),
            "shown": Statistic((self.H, self.padded_pixels)),
            "passed": Statistic((self.H, self.padded_pixels)),
            "active": Statistic((self.H,)),
            "square": Statistic((), lambda params, summary: self.D * summary.largest**2),
        }

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        learn, points = self.options.learn, float(sums["points"])
        shown, passed = (sums[name][:, : self.object_pixels] for name in ("shown", "passed"))
        numerator = sums["numerator"][:, :, : self.object_pixels].transpose(0, 2, 1)
        T, W = params["T"].T.reshape(numerator.shape), params["W"].T
        if "W" in learn:
            reached = shown + passed
            W = np.where(reached > UNUSED * points, shown / np.maximum(reached, UNUSED * points), W)
        if "T" in learn:
            known = shown > UNUSED * points
            T = np.where(known[..., None], numerator / np.where(known, shown, 1.0)[..., None], T)
        error = float(sums["square"]) + float(np.sum(T * (T * shown[..., None] - 2 * numerator)))
        return {
            "W": np.clip(W, MIN_PROBABILITY, 1 - MIN_PROBABILITY).T,
            "T": T.reshape(self.H, -1).T,
            "sigma": self.noise.learn(params, error, points, summary),
            "pi": self.prior.learn(params, sums["active"], points, settings),
        }


MODEL = InvECA
