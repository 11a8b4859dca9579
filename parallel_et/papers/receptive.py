"""Receptive fields of causes by reverse correlation, told apart by fits of Gabor wavelets and blobs (TH sec. 3.6.2)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parallel_et.inference.posterior import Inference
from parallel_et.runs.setup import open_source
from parallel_et.runs.stored_run import StoredRun

SOME, PIECE = 20_000, 256
"""Points that responses are taken of, and of these so many at a time."""
SHAPES = 200
"""Fields that are looked at as they are, at most: large ones take a second each."""
POOR = 0.5
"""A field of which the better fit leaves more than this share of the squares is neither."""
ANGLES, SCALES, WAVES = np.arange(4) * np.pi / 4, (1.0, 2.0), (3.0, 6.0, 10.0)
"""Where fits begin: directions, widths and wavelengths in pixels."""

TRIED, KEPT = 8, 2
"""Steps that each of them is followed for, and how many of the best are followed to the end."""


class Kinds(NamedTuple):
    """How many fields are Gabor wavelets, globular, or neither."""

    gabor: int
    globular: int
    neither: int

    def words(self) -> str:
        """For the table."""
        return f"of {sum(self)} fields {self.gabor} Gabor, {self.globular} globular, {self.neither} neither"


def count_kinds(fields: np.ndarray) -> Kinds:
    """Of fields (H, size, size)."""
    found = [kind_of(field) for field in fields]
    return Kinds(*(found.count(name) for name in Kinds._fields))


def own_fields(run: StoredRun) -> np.ndarray:
    """Fields of a run on patches, every so many of them, (m, size, size)."""
    return run.params["W"].T[:: -(-run.model.H // SHAPES)].reshape(-1, *open_source(run.job).shape)


def reverse_correlation(run: StoredRun) -> np.ndarray:
    """Mean of the points, on less off, by the strength of each cause in them; (H, size, size).

    Of a run on patches of two channels, on and off, each (size, size).
    """
    source = run.seen(open_source(run.job))
    inference, total = Inference(run.model, run.scheme, run.params, ("means",)), np.zeros((run.model.H, source.dims))
    weight = np.zeros(run.model.H)
    for first in range(0, min(source.points, SOME), PIECE):
        Y = source.read(first, min(first + PIECE, source.points, SOME))
        means = inference.block(np.asarray(Y, np.float64), first)["means"]
        total += means.T @ Y[:, : source.dims]
        weight += means.sum(0)
    on, off = (total / np.where(weight > 0, weight, 1.0)[:, None]).reshape(-1, *source.shape).swapaxes(0, 1)
    return on - off


def kind_of(field: np.ndarray) -> str:
    """Which of both fits a field (size, size) better."""
    size = (field**2).sum()
    if not size > 0:
        return "neither"
    left = {"gabor": fit(field, gabor, gabor_starts(field)), "globular": fit(field, blob, blob_starts(field))}
    best = min(left, key=lambda name: left[name])
    return best if left[best] <= POOR * size else "neither"


def fit(field: np.ndarray, shape: Callable[[np.ndarray, np.ndarray], np.ndarray], starts: list[list[float]]) -> float:
    """Squares that the best of several fits leaves; the amplitude is the best for each shape."""
    from scipy.optimize import least_squares  # takes its time to load

    place = np.moveaxis(np.indices(field.shape), 0, -1).astype(np.float64)

    def rest(x: np.ndarray) -> np.ndarray:
        drawn = shape(place, x).ravel()
        norm = drawn @ drawn
        return field.ravel() - (drawn @ field.ravel() / norm if norm > 1e-12 else 0.0) * drawn

    with np.errstate(over="ignore", invalid="ignore"):  # widths without end; such steps are taken back
        begun = [least_squares(rest, start, max_nfev=TRIED) for start in starts]
        begun.sort(key=lambda one: float(one.cost))
        return min(2 * float(least_squares(rest, one.x, max_nfev=60).cost) for one in begun[:KEPT])


def gabor(place: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A wave in a Gaussian: centre, logs of the widths along and across it, direction, log of the wavelength, phase."""
    row, column, along, across, angle, wave, phase = x
    u = np.cos(angle) * (place[..., 0] - row) + np.sin(angle) * (place[..., 1] - column)
    v = np.cos(angle) * (place[..., 1] - column) - np.sin(angle) * (place[..., 0] - row)
    envelope = np.exp(-0.5 * ((u * np.exp(-along)) ** 2 + (v * np.exp(-across)) ** 2))
    return envelope * np.cos(2 * np.pi * u * np.exp(-wave) + phase)


def blob(place: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A difference of two round Gaussians: centre, log of the inner width, of the ratio of widths less one, share."""
    row, column, width, ratio, share = x
    squares = (place[..., 0] - row) ** 2 + (place[..., 1] - column) ** 2
    inner, outer = np.exp(width), np.exp(width) * (1 + np.exp(ratio))
    return np.exp(-0.5 * squares / inner**2) - share * (inner / outer) ** 2 * np.exp(-0.5 * squares / outer**2)


def centre_of(field: np.ndarray) -> list[float]:
    """Where most of a field is."""
    return [float(k) for k in np.unravel_index(np.abs(field).argmax(), field.shape)]


def gabor_starts(field: np.ndarray) -> list[list[float]]:
    """Waves of several directions and lengths."""
    return [
        [*centre_of(field), np.log(wave / 3), np.log(wave / 2), angle, np.log(wave), 0.3]
        for angle in ANGLES
        for wave in WAVES
    ]


def blob_starts(field: np.ndarray) -> list[list[float]]:
    """Blobs of several widths."""
    return [[*centre_of(field), np.log(width), 0.0, 0.5] for width in SCALES]
