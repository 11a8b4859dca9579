"""Filters of images before patches are cut, and steps on patches after the cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft
from scipy.ndimage import gaussian_filter

from parallel_et.core.random import stream

WHITENING_CUTOFF = 0.4
"""Cut-off of the pseudo-whitening of Olshausen and Field in cycles per pixel; about 200 cycles in 512 pixels."""


@dataclass(frozen=True)
class Noise:
    """Gaussian noise that is added to images. The noise of an image follows from the seed, its file and its number.

    Attributes
    ----------
    sigma : standard deviation
    files : all files, in order
    """

    sigma: float
    seed: int
    files: Sequence[str]

    def add(self, image: np.ndarray, file: str, number: int) -> np.ndarray:
        """Add the noise to an image, which has this number in its file."""
        random = stream(self.seed, f"noise of image {number}", self.files.index(file))
        return image + random.normal(0.0, self.sigma, image.shape)


@dataclass(frozen=True)
class Steps:
    """The steps of the preparation, in this order: the first four on whole images, the others on patches."""

    noise: Noise | None = None
    clamp: float | None = None
    dog: tuple[float, float] | None = None
    whiten: bool = False
    mean_free: bool = False
    zca: float | None = None
    contrast: float | None = None
    on_off: bool = False
    scale: tuple[float, float] | None = None

    def describe_image_steps(self) -> list[dict[str, Any]]:
        """Describe the steps on whole images for the output file."""
        noise = self.noise
        steps: dict[str, dict[str, Any] | None] = {
            "noise": None if noise is None else {"sigma": noise.sigma, "seed": noise.seed, "without it": "/truth"},
            "clamp": None if self.clamp is None else {"brightest percent": self.clamp},
            "difference of Gaussians": None if self.dog is None else {"sigmas": list(self.dog), "edges": "reflected"},
            "whiten": {"filter": "f exp(-(f/f0)^4)", "f0": WHITENING_CUTOFF} if self.whiten else None,
        }
        return [{"step": name, **values} for name, values in steps.items() if values is not None]

    def describe_patch_steps(self, span: tuple[float, float] | None) -> list[dict[str, Any]]:
        """Describe the steps on patches for the output file; ``span``: smallest and largest value before scaling."""
        steps = {
            "mean-free": {} if self.mean_free else None,
            "zca": None if self.zca is None else {"epsilon": self.zca, "matrix": "/zca/matrix", "mean": "/zca/mean"},
            "contrast": None if self.contrast is None else {"largest magnitude of each patch": self.contrast},
            "on-off": {"channels": ["positive part", "negative part"]} if self.on_off else None,
            "scale": None if self.scale is None else {"from": list(span or ()), "to": list(self.scale)},
        }
        return [{"step": name, **values} for name, values in steps.items() if values is not None]


@dataclass(frozen=True)
class Zca:
    """Mean (D,) of all patches, and the symmetric matrix (D, D) that whitens deviations from the mean."""

    mean: np.ndarray
    matrix: np.ndarray


def filter_image(image: np.ndarray, steps: Steps) -> np.ndarray:
    """Filter an image (height, width) float64: clamp, difference of Gaussians, whiten. Return float32."""
    if steps.clamp is not None:
        image = np.minimum(image, np.percentile(image, 100 - steps.clamp))
    if steps.dog is not None:
        narrow, wide = (gaussian_filter(image, sigma) for sigma in steps.dog)
        image = narrow - wide
    if steps.whiten:
        image = whiten(image)
    with np.errstate(over="ignore"):
        return image.astype(np.float32)


def whiten(image: np.ndarray) -> np.ndarray:
    """Multiply the spectrum of an image by f exp(-(f/f0)^4). The image is assumed to be periodic."""
    height, width = image.shape
    f = np.hypot(fft.fftfreq(height)[:, None], fft.rfftfreq(width))
    return fft.irfft2(fft.rfft2(image) * (f * np.exp(-((f / WHITENING_CUTOFF) ** 4))), image.shape)


def compute_zca(first: np.ndarray, second: np.ndarray, points: int, epsilon: float) -> Zca:
    """Compute ZCA whitening from the sums over all patches of x (D,) and x x' (D, D).

    Parameters
    ----------
    epsilon : constant added to the variances
    """
    mean = first / points
    variances, axes = np.linalg.eigh(second / points - np.outer(mean, mean))
    return Zca(mean, (axes / np.sqrt(np.maximum(variances, 0) + epsilon)) @ axes.T)


def apply_patch_steps(
    patches: np.ndarray, steps: Steps, zca: Zca | None, span: tuple[float, float] | None
) -> np.ndarray:
    """Apply the steps on patches (n, size, size).

    Parameters
    ----------
    zca : whitening; if None, the steps end before whitening
    span : smallest and largest value of all patches; if None, scaling is left out

    Returns
    -------
    array : float64, (n, size, size), or (n, 2, size, size) with on and off channels
    """
    values: np.ndarray = patches.reshape(len(patches), -1).astype(np.float64)
    if steps.mean_free:
        values -= values.mean(1, keepdims=True)
    if steps.zca is not None:
        if zca is None:
            return values.reshape(patches.shape)
        values = (values - zca.mean) @ zca.matrix
    if steps.contrast is not None:
        largest = np.abs(values).max(1, keepdims=True)
        values *= steps.contrast / np.where(largest > 0, largest, 1.0)
    values = values.reshape(patches.shape)
    if steps.on_off:
        values = np.maximum(np.stack([values, -values], 1), 0.0)
    if steps.scale is not None and span is not None:
        (low, high), (smallest, largest) = steps.scale, span
        values = low + (values - smallest) * ((high - low) / (largest - smallest))
    return values
