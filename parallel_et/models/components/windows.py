"""Windows of images that show isolated objects, as initial features of models with objects at any position."""

import numpy as np

MAX_SHIFT_PIXELS = 2
"""Largest shift between two windows of the same object, in pixels."""
SURROUND_WEIGHT = 2.0
"""Weight of the energy around a window relative to the energy inside."""
WINDOWS_PER_IMAGE = 2
"""Number of windows of an image that are considered."""


def typical_windows(images: np.ndarray, size: int, count: int) -> np.ndarray:
    """Return windows (count, size, size, C) that represent periodic images (n, rows, columns, C).

    1. Each image proposes a few windows. The windows with the least energy around them are kept, 3 n / 4.
    2. Windows are selected one by one. Each minimises the sum of the distances of all windows to the selected ones.

    A window with two objects is far from all other windows, so it is not among the first.
    """
    windows, around = clearest_windows(images, size)
    kept = windows[np.argsort(around, kind="stable")[: max(count, 3 * len(images) // 4)]]
    gaps = relative_distances(kept)
    taken: list[int] = []
    near = np.ones(len(kept))
    for _ in range(count):
        gain = np.maximum(near[:, None] - gaps, 0.0).sum(0)
        gain[taken] = -1.0
        taken.append(int(gain.argmax()))
        near = np.minimum(near, gaps[:, taken[-1]])
    return kept[taken]


def clearest_windows(images: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows of each image with the most energy inside and the least around them.

    The second window of an image does not overlap the first.
    Otherwise dark objects would be found only in images without other objects.

    Returns
    -------
    Windows (WINDOWS_PER_IMAGE n, size, size, C), and the energy around each relative to the energy inside.
    """
    n, height, width = images.shape[:3]
    energy, margin = (images**2).sum(-1), min(max(1, size // 4), (min(height, width) - size) // 2)
    energy = np.maximum(energy - np.median(energy), 0.0)  # removes the energy of noise, as most pixels are background
    inside = sums_over_squares(energy, size)
    around = np.roll(sums_over_squares(energy, size + 2 * margin), (margin, margin), (1, 2)) - inside
    clear, step, each = inside - SURROUND_WEIGHT * around, np.arange(size), np.arange(n)

    def pixels(top: np.ndarray, left: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        rows, columns = (top[:, None] + steps) % height, (left[:, None] + steps) % width
        return each[:, None, None], rows[:, :, None], columns[:, None]

    windows, surround_ratios = [], []
    for _ in range(WINDOWS_PER_IMAGE):
        top, left = np.divmod(clear.reshape(n, -1).argmax(1), width)
        clear[pixels(top, left, np.arange(1 - size, size))] = -np.inf
        for _ in range(3):  # move the centre of mass to the centre of the window
            inner = energy[pixels(top, left, step)]
            weight = np.maximum(inner.sum((1, 2)), 1e-300)
            off = [np.rint(inner.sum(axis) @ step / weight - (size - 1) / 2).astype(int) for axis in (2, 1)]
            top, left = (top + off[0]) % height, (left + off[1]) % width
        windows.append(images[pixels(top, left, step)])
        surround_ratios.append(around[each, top, left] / np.maximum(inside[each, top, left], 1e-300))
    return np.concatenate(windows), np.concatenate(surround_ratios)


def sums_over_squares(table: np.ndarray, size: int) -> np.ndarray:
    """Return the sums over size x size squares with their upper left corners at each pixel of (n, rows, columns)."""
    rows = sum(np.roll(table, -i, 1) for i in range(size))
    return np.asarray(sum(np.roll(rows, -i, 2) for i in range(size)))


def relative_distances(windows: np.ndarray) -> np.ndarray:
    """Return squared distances of windows (m, size, size, C) relative to their squares, minimal over shifts, (m, m)."""
    flat = windows.reshape(len(windows), -1)
    square, product = np.einsum("mi,mi->m", flat, flat), np.full((len(flat), len(flat)), -np.inf)
    reach = min(MAX_SHIFT_PIXELS, windows.shape[1] - 1)
    for i in range(-reach, reach + 1):
        for j in range(-reach, reach + 1):
            product = np.maximum(product, flat @ np.roll(windows, (i, j), (1, 2)).reshape(len(flat), -1).T)
    both = np.maximum(square[:, None] + square, 1e-300)
    return np.clip(1 - 2 * np.maximum(product, product.T) / both, 0.0, 1.0)
