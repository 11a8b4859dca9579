"""Windows of images: the parts of a point at the positions where a cause can be."""

from typing import NamedTuple

import numpy as np


class Windows(NamedTuple):
    """Square windows of an image, one per position, which begin at the pixel of the position and wrap around the edges.

    Attributes
    ----------
    grid : rows and columns of the image, and of the positions
    size : side of a window in pixels
    channels : number of values per pixel, adjacent in a point
    """

    grid: tuple[int, int]
    size: int
    channels: int

    @property
    def places(self) -> int:
        """Number of positions, P."""
        return self.grid[0] * self.grid[1]

    @property
    def width(self) -> int:
        """Number of values per window, F."""
        return self.size**2 * self.channels

    def pixels(self, place: np.ndarray) -> np.ndarray:
        """Return the pixels of the windows at positions (...), row by row, (..., size^2)."""
        step = np.arange(self.size)
        row = (place[..., None] // self.grid[1] + step) % self.grid[0]
        column = (place[..., None] % self.grid[1] + step) % self.grid[1]
        return (row[..., :, None] * self.grid[1] + column[..., None, :]).reshape(*place.shape, -1)

    def values_at(self, Y: np.ndarray, row: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return windows of points (n, D), given by rows (m,) and positions (m,); (m, F)."""
        images = Y.reshape(len(Y), self.places, self.channels)
        return images[row[:, None], self.pixels(place)].reshape(len(row), self.width)

    def all_values(self, Y: np.ndarray) -> np.ndarray:
        """Return all windows of points (n, D), point by point, (n P, F)."""
        images = Y.reshape(len(Y), self.grid[0], self.grid[1] * self.channels)
        overlap = self.size - 1
        images = np.concatenate([images, images[:, :overlap]], 1)
        images = np.concatenate([images, images[:, :, : overlap * self.channels]], 2)
        shape = self.size, self.size * self.channels
        views = np.lib.stride_tricks.sliding_window_view(images, shape, (1, 2))[:, :, :: self.channels]
        return views.reshape(len(Y) * self.places, self.width)
