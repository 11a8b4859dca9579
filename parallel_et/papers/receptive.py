"""Receptive fields by reverse correlation, classified by fits of Gabor wavelets and round blobs (TH sec. 3.6.2)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parallel_et.inference.posterior import Inference
from parallel_et.runs.setup import open_source
from parallel_et.runs.stored_run import StoredRun

RESPONSE_POINTS, BLOCK_POINTS = 20_000, 256
"""Maximum number of points for a reverse correlation, and number of points that are inferred at once."""
LARGEST_FIELD_COUNT = 200
"""Maximum number of generative fields that are classified. A large field takes a second."""
LARGEST_RESIDUAL_FRACTION = 0.5
"""Largest residual of a good fit, as a fraction of the squared field."""
START_ANGLES, START_WIDTHS, START_WAVELENGTHS = np.arange(4) * np.pi / 4, (1.0, 2.0), (3.0, 6.0, 10.0)
"""Initial values of the fits: directions in radians, widths and wavelengths in pixels."""

TRIAL_STEPS, REFINED_FITS = 8, 2
"""Steps from each initial value, and number of the best fits that are continued to convergence."""


class FieldCounts(NamedTuple):
    """Numbers of fields that are Gabor wavelets, globular, or neither."""

    gabor: int
    globular: int
    neither: int

    def summary(self) -> str:
        """Return the numbers in words, for the table."""
        return f"of {sum(self)} fields {self.gabor} Gabor, {self.globular} globular, {self.neither} neither"


def count_kinds(fields: np.ndarray) -> FieldCounts:
    """Classify fields (H, size, size) and count the classes."""
    found = [classify_field(field) for field in fields]
    return FieldCounts(*(found.count(name) for name in FieldCounts._fields))


def generative_fields(run: StoredRun) -> np.ndarray:
    """Return generative fields of a run on patches, evenly spaced, (m, size, size)."""
    return run.params["W"].T[:: -(-run.model.H // LARGEST_FIELD_COUNT)].reshape(-1, *open_source(run.job).shape)


def reverse_correlation(run: StoredRun) -> np.ndarray:
    """Compute the mean of the points, on minus off channel, weighted by the strength of each cause; (H, size, size)."""
    source = run.centred(open_source(run.job))
    inference, total = Inference(run.model, run.scheme, run.params, ("means",)), np.zeros((run.model.H, source.dims))
    weight = np.zeros(run.model.H)
    for first in range(0, min(source.points, RESPONSE_POINTS), BLOCK_POINTS):
        Y = source.read(first, min(first + BLOCK_POINTS, source.points, RESPONSE_POINTS))
        means = inference.block(np.asarray(Y, np.float64), first)["means"]
        total += means.T @ Y[:, : source.dims]
        weight += means.sum(0)
    on, off = (total / np.where(weight > 0, weight, 1.0)[:, None]).reshape(-1, *source.shape).swapaxes(0, 1)
    return on - off


def classify_field(field: np.ndarray) -> str:
    """Classify a field (size, size) as gabor, globular or neither."""
    size = (field**2).sum()
    if not size > 0:
        return "neither"
    left = {
        "gabor": fit_residual(field, gabor, initial_gabors(field)),
        "globular": fit_residual(field, blob, initial_blobs(field)),
    }
    best = min(left, key=lambda name: left[name])
    return best if left[best] <= LARGEST_RESIDUAL_FRACTION * size else "neither"


def fit_residual(
    field: np.ndarray, shape: Callable[[np.ndarray, np.ndarray], np.ndarray], starts: list[list[float]]
) -> float:
    """Return the smallest squared residual over several fits. The amplitude is optimal for each shape."""
    from scipy.optimize import least_squares  # takes its time to load

    place = np.moveaxis(np.indices(field.shape), 0, -1).astype(np.float64)

    def residual(x: np.ndarray) -> np.ndarray:
        drawn = shape(place, x).ravel()
        norm = drawn @ drawn
        return field.ravel() - (drawn @ field.ravel() / norm if norm > 1e-12 else 0.0) * drawn

    with np.errstate(over="ignore", invalid="ignore"):  # infinite widths; the solver rejects these steps
        fits = [least_squares(residual, start, max_nfev=TRIAL_STEPS) for start in starts]
        fits.sort(key=lambda one: float(one.cost))
        return min(2 * float(least_squares(residual, one.x, max_nfev=60).cost) for one in fits[:REFINED_FITS])


def gabor(place: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return a wave in a Gaussian.

    ``x`` contains the centre, log widths along and across the wave, direction, log wavelength and phase.
    """
    row, column, along, across, angle, wave, phase = x
    u = np.cos(angle) * (place[..., 0] - row) + np.sin(angle) * (place[..., 1] - column)
    v = np.cos(angle) * (place[..., 1] - column) - np.sin(angle) * (place[..., 0] - row)
    envelope = np.exp(-0.5 * ((u * np.exp(-along)) ** 2 + (v * np.exp(-across)) ** 2))
    return envelope * np.cos(2 * np.pi * u * np.exp(-wave) + phase)


def blob(place: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return a difference of two round Gaussians.

    ``x`` contains the centre, log of the inner width, log of the ratio of widths minus one, and weight of the surround.
    """
    row, column, width, ratio, surround = x
    squares = (place[..., 0] - row) ** 2 + (place[..., 1] - column) ** 2
    inner, outer = np.exp(width), np.exp(width) * (1 + np.exp(ratio))
    return np.exp(-0.5 * squares / inner**2) - surround * (inner / outer) ** 2 * np.exp(-0.5 * squares / outer**2)


def peak_position(field: np.ndarray) -> list[float]:
    """Return the position of the largest magnitude of a field."""
    return [float(k) for k in np.unravel_index(np.abs(field).argmax(), field.shape)]


def initial_gabors(field: np.ndarray) -> list[list[float]]:
    """Return initial Gabor wavelets of several directions and wavelengths."""
    return [
        [*peak_position(field), np.log(wave / 3), np.log(wave / 2), angle, np.log(wave), 0.3]
        for angle in START_ANGLES
        for wave in START_WAVELENGTHS
    ]


def initial_blobs(field: np.ndarray) -> list[list[float]]:
    """Return initial blobs of several widths."""
    return [[*peak_position(field), np.log(width), 0.0, 0.5] for width in START_WIDTHS]
