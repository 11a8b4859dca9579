"""Windows of images in which something stands by itself, of as many kinds as are wanted."""

import numpy as np

REACH = 2
"""Pixels by which windows of the same thing may be apart."""
AROUND = 2.0
"""How much what is around a window counts against what is in it."""
EACH = 2
"""Windows of an image that are considered."""


def typical_windows(images: np.ndarray, size: int, count: int) -> np.ndarray:
    """So many windows (count, size, size, C) of images (n, rows, columns, C) that go round their edges.

    Of all windows that are considered, some of each image, those are kept around which there is least, three for every
    four images. Of these, those are taken, one after the other, that bring all others nearest to one that was taken;
    what is far from all others brings only itself, so no window of two things at once is among the first.
    """
    windows, around = clearest(images, size)
    kept = windows[np.argsort(around, kind="stable")[: max(count, 3 * len(images) // 4)]]
    gaps = distances(kept)
    taken: list[int] = []
    near = np.ones(len(kept))
    for _ in range(count):
        gain = np.maximum(near[:, None] - gaps, 0.0).sum(0)
        gain[taken] = -1.0
        taken.append(int(gain.argmax()))
        near = np.minimum(near, gaps[:, taken[-1]])
    return kept[taken]


def clearest(images: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of each image (EACH n, size, size, C) with most in them and least around, and the share of the latter.

    The second of an image is beside the first: else what is dark would be there only where it stands alone.
    """
    n, height, width = images.shape[:3]
    energy, margin = (images**2).sum(-1), min(max(1, size // 4), (min(height, width) - size) // 2)
    energy = np.maximum(energy - np.median(energy), 0.0)  # most pixels have noise alone, and dark things little more
    inside = sums_from(energy, size)
    around = np.roll(sums_from(energy, size + 2 * margin), (margin, margin), (1, 2)) - inside
    clear, step, each = inside - AROUND * around, np.arange(size), np.arange(n)

    def at(top: np.ndarray, left: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        rows, columns = (top[:, None] + steps) % height, (left[:, None] + steps) % width
        return each[:, None, None], rows[:, :, None], columns[:, None]

    windows, shares = [], []
    for _ in range(EACH):
        top, left = np.divmod(clear.reshape(n, -1).argmax(1), width)
        clear[at(top, left, np.arange(1 - size, size))] = -np.inf
        for _ in range(3):  # what is in it comes to its middle
            here = energy[at(top, left, step)]
            weight = np.maximum(here.sum((1, 2)), 1e-300)
            off = [np.rint(here.sum(axis) @ step / weight - (size - 1) / 2).astype(int) for axis in (2, 1)]
            top, left = (top + off[0]) % height, (left + off[1]) % width
        windows.append(images[at(top, left, step)])
        shares.append(around[each, top, left] / np.maximum(inside[each, top, left], 1e-300))
    return np.concatenate(windows), np.concatenate(shares)


def sums_from(table: np.ndarray, size: int) -> np.ndarray:
    """Sums over the squares of so many pixels a side that begin at each pixel of images (n, rows, columns)."""
    rows = sum(np.roll(table, -i, 1) for i in range(size))
    return np.asarray(sum(np.roll(rows, -i, 2) for i in range(size)))


def distances(windows: np.ndarray) -> np.ndarray:
    """Squared distances of windows (m, size, size, C) as shares of their squares, best of some shifts; (m, m)."""
    flat = windows.reshape(len(windows), -1)
    square, product = np.einsum("mi,mi->m", flat, flat), np.full((len(flat), len(flat)), -np.inf)
    reach = min(REACH, windows.shape[1] - 1)
    for i in range(-reach, reach + 1):
        for j in range(-reach, reach + 1):
            product = np.maximum(product, flat @ np.roll(windows, (i, j), (1, 2)).reshape(len(flat), -1).T)
    both = np.maximum(square[:, None] + square, 1e-300)
    return np.clip(1 - 2 * np.maximum(product, product.T) / both, 0.0, 1.0)
