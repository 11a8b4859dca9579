"""Invariant exclusive component analysis (InvECA): objects at any place of an image, each with a mask and features."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
from pydantic import Field
from scipy.fft import irfft2, rfft2
from scipy.special import gammaln

from parallel_et.core.contract import UNUSED, Block, Knobs, Model, Param, Params, Sum, Summary, Totals
from parallel_et.core.options import ModelOptions
from parallel_et.core.posterior import Listed, Sparse, Tabled
from parallel_et.core.states import Latents, Table, best_places
from parallel_et.core.windows import Windows
from parallel_et.errors import UserError
from parallel_et.kernels import inveca, truncated
from parallel_et.kernels.rows import aligned, padded
from parallel_et.models.parts.fields import block_norms, with_none
from parallel_et.models.parts.noises import SIGMA, Gauss
from parallel_et.models.parts.priors import EDGE, PI, Ordered
from parallel_et.models.parts.windows import typical_windows

LARGEST = 64
"""Pixels a side of an object: a kernel multiplies one number up to 2 for each eighth of them."""
NOWHERE = -1e4
"""Log probability that what is behind the last pixel of an object is opaque."""
PIECE = 1 << 21
"""Bytes of the correlations that are computed at a time."""
WINDOWS = 48
"""Points for each object, one window of each, that features begin with."""


class InvECAOptions(ModelOptions):
    """The keys of [model] of its own."""

    size: int = Field(10, ge=1, le=LARGEST, description="pixels a side of an object")
    rows: int | None = Field(None, ge=1, le=10_000, description="rows of an image; by default it is square")
    channels: int = Field(3, ge=1, le=1000, description="values of a pixel, side by side in a point: 3 for colours")


@dataclass(frozen=True)
class Ready:
    """Of one iteration.

    Attributes
    ----------
    opaque, clear : (H, wide) log W and log(1 - W) of all pixels of each object
    features : (H, C, wide)
    orders : (H + 1,) T log m!, as 1 / m! is the prior of orders at any temperature
    odds, empty : of an active object, (H,) or (1,); of the empty state
    kernels : (C + 1, H, rows, columns // 2 + 1) conjugate Fourier transforms of what points are correlated with
    offset : (H,) added to the correlations
    """

    opaque: np.ndarray
    clear: np.ndarray
    features: np.ndarray
    orders: np.ndarray
    odds: np.ndarray
    empty: float
    precision: float
    kernels: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True)
class Seen:
    """Of a block: Y (n, width), and the log joint of the empty state (n,)."""

    Y: np.ndarray
    base: np.ndarray

    def __len__(self) -> int:
        return len(self.Y)


class InvECA(Model):
    """A pixel shows the nearest of the active objects that is opaque there; else it is black.

    Object h at place x is opaque in the pixel x + i with the probability W_ih, independently, and has there the
    features T_ih; images go round their edges. A state lists its atoms from the farthest to the nearest; atom h + x H
    is object h with its upper left corner at pixel x. Which pixels are opaque is summed over, so EM is exact.
    """

    Options = InvECAOptions
    grid: tuple[int, int]
    prior: Ordered
    noise: Gauss
    first_job = {
        "model": {"size": 5},
        "data": {"overlap": "nearest", "colours": "hues"},
        "anneal": {"iterations": 50, "temperature": 1.0},
    }
    params = {
        "W": Param("PH", "masks: how probably each pixel of an object is opaque", low=EDGE, high=1 - EDGE),
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
        self.inside, self.places = self.size**2, self.grid[0] * self.grid[1]
        self.wide = padded(self.inside)
        self.sizes = {**self.sizes, "P": self.inside, "F": self.inside * self.channels}
        ways = max(self.places, self.inside)  # an image has at least the pixels of an object, whose job is checked
        self.windows = Windows(self.grid, self.size, self.channels)
        self.latents = Latents(self.H * ways, ordered=True, owner=tuple(range(self.H)) * ways, windows=self.windows)
        self.prior, self.noise = Ordered(self.H, self.places), Gauss()

    @classmethod
    def keys_told_by(cls, arrays: Params) -> dict[str, Any]:
        if "W" not in arrays or "T" not in arrays:
            return {}
        return {"size": isqrt(len(arrays["W"])), "channels": len(arrays["T"]) // max(1, len(arrays["W"]))}

    def check(self, summary: Summary) -> None:
        rows, columns = self.grid
        if self.places * self.channels != summary.dims or (self.options.rows is None and rows != columns):
            expected = f"images of {rows} rows" if self.options.rows else "square images, or model.rows,"
            found = f"{summary.dims} values a point"
            raise UserError(f"data: expected {expected} of {self.channels} values a pixel, found {found}")
        if min(self.grid) < self.size:
            found = f"{self.size} in images of {rows} x {columns} pixels"
            raise UserError(f"model.size: expected objects that fit into the images, found {found}")

    def start(self, name: str, summary: Summary) -> tuple[float, float]:
        return (0.5, 0.0) if name == "W" else (0.0, summary.rms or 1.0)

    def rows_for(self, name: str) -> int:
        return WINDOWS * self.H

    def from_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Windows of points in which an object stands by itself, of as many kinds as there are."""
        images = rows.T.reshape(-1, *self.grid, self.channels)
        return typical_windows(images, self.size, self.H).reshape(self.H, -1).T

    def nanoseconds(self, states: int) -> float:
        return 1.0 * self.inside * states + 10.0 * self.H * self.places

    def pictures(self, params: Params) -> np.ndarray:
        """Each object alone, at the upper left corner of an image, as a point; (D, H)."""
        objects = params["T"].reshape(self.size, self.size, self.channels, self.H)
        images = np.zeros((*self.grid, self.channels, self.H))
        images[: self.size, : self.size] = params["W"].reshape(self.size, self.size, 1, self.H) * objects
        return images.reshape(self.D, self.H)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        return self._layers(params["W"].T, params, states)

    def _layers(self, masks: np.ndarray, params: Params, states: np.ndarray) -> np.ndarray:
        """Images (..., D) of states (..., g), with masks (H, P), or (..., g, P) of each layer."""
        flat = states.reshape(-1, states.shape[-1])
        features = with_none(params["T"].T.reshape(self.H, self.inside, self.channels))
        images = np.zeros((len(flat), self.places, self.channels))
        each = masks.reshape(*flat.shape, -1) if masks.ndim > 2 else None
        rows = np.arange(len(flat))[:, None]
        for place in range(flat.shape[1]):
            cause = np.where(flat[:, place] >= 0, flat[:, place] % self.H, -1)
            mask = with_none(masks)[cause] if each is None else each[:, place] * (cause >= 0)[:, None]
            pixels = self.windows.pixels(np.maximum(flat[:, place], 0) // self.H)
            images[rows, pixels] += mask[..., None] * (features[cause] - images[rows, pixels])
        return images.reshape(*states.shape[:-1], self.D)

    def draw(self, params: Params, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        states = self.prior.draw(params, rng, count)
        masks = with_none(params["W"].T)[np.where(states >= 0, states % self.H, -1)]
        images = self._layers((rng.random(masks.shape) < masks).astype(np.float64), params, states)
        return self.noise.draw(params, rng, images), states

    # the E-step

    def prepare(self, params: Params, knobs: Knobs) -> Ready:
        variance, W = float(params["sigma"]) ** 2, params["W"].T
        features = params["T"].T.reshape(self.H, self.inside, self.channels).transpose(0, 2, 1)
        patterns = np.zeros((self.channels + 1, self.H, *self.grid))
        shape = (self.H, self.size, self.size)
        for c in range(self.channels):
            patterns[c, :, : self.size, : self.size] = (2 * W * features[:, c]).reshape(shape)
        patterns[-1, :, : self.size, : self.size] = W.reshape(shape)
        return Ready(
            self._wide(np.log(W), NOWHERE),
            self._wide(np.log1p(-W), 0.0),
            self._wide(features, 0.0),
            knobs.temperature * gammaln(np.arange(self.H + 1) + 1.0),
            np.atleast_1d(self.prior.odds(params)),
            self.prior.empty(params) - 0.5 * self.D * np.log(2 * np.pi * variance),
            1 / variance,
            np.conj(rfft2(patterns)),
            -np.einsum("hp,hcp->h", W, features**2),
        )

    def _wide(self, table: np.ndarray, rest: float) -> np.ndarray:
        """A table (..., P) as the kernels like it, (..., wide)."""
        found = aligned((*table.shape[:-1], self.wide))
        found[..., : self.inside], found[..., self.inside :] = table, rest
        return found

    def _terms(self, ready: Ready, Y: np.ndarray, base: np.ndarray) -> tuple[Any, ...]:
        """What the kernels of log joints are told first."""
        parts = (ready.opaque, ready.clear, ready.features)
        return Y, *self.grid, self.size, *parts, base, ready.odds, ready.orders, ready.precision

    def _base(self, ready: Ready, Y: np.ndarray) -> np.ndarray:
        """The log joint of the empty state, (n,)."""
        return ready.empty - 0.5 * ready.precision * block_norms(Y)

    def log_joint(self, ready: Ready, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """log p(s, y), with the prior of orders to the power T, so that annealing leaves that as it is."""
        shape = np.broadcast_shapes(Y.shape[:-1], states.shape[:-1])
        flat = np.ascontiguousarray(np.broadcast_to(Y, (*shape, self.D))).reshape(-1, self.D)
        listed = np.ascontiguousarray(np.broadcast_to(states, (*shape, states.shape[-1])), np.int32)
        seen = Seen(flat, ready.empty - 0.5 * ready.precision * np.einsum("nd,nd->n", flat, flat))
        return self.log_states(ready, seen, listed.reshape(len(flat), 1, -1)).reshape(shape)

    def observe(self, ready: Ready, block: Block, singles: bool) -> Seen:
        return Seen(block.rows, self._base(ready, block.rows))

    def log_states(self, ready: Ready, seen: Seen, states: np.ndarray) -> np.ndarray:
        logs = np.empty(states.shape[:2])
        inveca.log_states(*self._terms(ready, seen.Y, seen.base), states, logs)
        return logs

    def log_singles(self, ready: Ready, block: Block) -> np.ndarray:
        states = np.arange(self.latents.atoms, dtype=np.int32)[None, :, None]
        seen = self.observe(ready, block, True)
        logs = np.empty((len(block), self.latents.atoms))
        for n in range(len(block)):
            logs[n] = self.log_states(ready, Seen(seen.Y[n : n + 1], seen.base[n : n + 1]), states)
        return logs

    def scores(self, ready: Ready, seen: Seen) -> np.ndarray:
        """How well each object fits at each place, (n, H, places), by correlations.

        sum_i W_i (min(|y|^2, 2 sigma^2) - |y - T_i|^2): a fit is to be better than that of anything else, to which a
        pixel costs no more than two of noise. So bright places do not attract dark objects.
        """
        images = seen.Y[:, : self.D].reshape(-1, self.places, self.channels)
        energy = np.einsum("npc,npc->np", images, images)
        planes = np.empty((len(images), self.channels + 1, *self.grid))
        planes[:, :-1] = images.transpose(0, 2, 1).reshape(len(images), self.channels, *self.grid)
        planes[:, -1] = (np.minimum(energy, 2 / ready.precision) - energy).reshape(-1, *self.grid)
        waves = rfft2(planes)
        product = waves[:, 0, None] * ready.kernels[0]
        for c in range(1, self.channels + 1):
            product += waves[:, c, None] * ready.kernels[c]
        found = irfft2(product, s=self.grid, overwrite_x=True).reshape(len(images), self.H, self.places)
        return found + ready.offset[:, None]

    def select(self, ready: Ready, seen: Seen, count: int) -> np.ndarray:
        """The best place of each object, and of these the best; beyond H candidates also other places."""
        n, step = len(seen), max(1, PIECE // (16 * self.H * self.places))
        candidates = np.empty((n, count), np.int32)
        for first in range(0, n, step):
            some = slice(first, min(first + step, n))
            candidates[some] = best_places(self.scores(ready, Seen(seen.Y[some], seen.base[some])), count)
        return candidates

    def over_table(
        self, ready: Ready, seen: Seen, candidates: np.ndarray, table: Table, beta: float, singles: bool
    ) -> Tabled:
        n, K = len(candidates), len(table)
        logs, order = np.empty((n, K)), np.lexsort(table.members.T[::-1])
        terms = self._terms(ready, seen.Y, seen.base)
        inveca.log_table(*terms, candidates, table.members, table.size, order, logs)
        if singles:
            alone = self.log_singles(ready, Block(seen.Y, self.D, 0))
            np.put_along_axis(alone, candidates, -np.inf, 1)  # these are in the table
            logs = np.hstack([logs, alone])
        evidence = np.empty(n)
        truncated.weigh(logs, beta, evidence)
        return Tabled(evidence, candidates, table, *map(Sparse.of, np.split(logs, [K], 1)))

    # the M-step

    def sums(self, stage: str) -> Mapping[str, Sum]:
        return {
            "numerator": Sum((self.H, self.channels, self.wide), lambda params, summary: summary.largest),
            "shown": Sum((self.H, self.wide)),
            "passed": Sum((self.H, self.wide)),
            "active": Sum((self.H,)),
            "square": Sum((), lambda params, summary: self.D * summary.largest**2),
        }

    def collect(
        self, stage: str, ready: Ready, block: Block, posterior: Tabled | Listed, used: np.ndarray, total: Any
    ) -> None:
        point, states, q = posterior.pairs(used)
        names = ("numerator", "shown", "passed", "active")
        found = [np.zeros(self.sums(stage)[name].shape) for name in names]
        parts = (ready.opaque, ready.clear, ready.features)
        states = np.ascontiguousarray(states, np.int32)
        inveca.weighted_sums(block.rows, *self.grid, self.size, *parts, ready.precision, point, states, q, *found)
        for name, values in zip(names, found, strict=True):
            total.add(name, values)
        total.add("square", block_norms(block.rows)[used].sum())

    def maximise(self, stage: str, params: Params, sums: Totals, knobs: Knobs, summary: Summary) -> Params:
        learn, points = self.options.learn, float(sums["points"])
        shown, passed = (sums[name][:, : self.inside] for name in ("shown", "passed"))
        seen = sums["numerator"][:, :, : self.inside].transpose(0, 2, 1)
        T, W = params["T"].T.reshape(seen.shape), params["W"].T
        if "W" in learn:
            there = shown + passed
            W = np.where(there > UNUSED * points, shown / np.maximum(there, UNUSED * points), W)
        if "T" in learn:
            known = shown > UNUSED * points
            T = np.where(known[..., None], seen / np.where(known, shown, 1.0)[..., None], T)
        error = float(sums["square"]) + float(np.sum(T * (T * shown[..., None] - 2 * seen)))
        return {
            "W": np.clip(W, EDGE, 1 - EDGE).T,
            "T": T.reshape(self.H, -1).T,
            "sigma": self.noise.learn(params, error, points, summary),
            "pi": self.prior.learn(params, sums["active"], points, knobs),
        }


MODEL = InvECA
