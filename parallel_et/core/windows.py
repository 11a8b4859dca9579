"""Windows of images: what of a point is to be seen where a cause may stand."""

from typing import NamedTuple

import numpy as np


class Windows(NamedTuple):
    """Squares of images, one for each place, that begin at its pixel and go round the edges.

    Attributes
    ----------
    grid : rows and columns of an image, and so of the places
    size : pixels a side of a window
    channels : values of a pixel, side by side in a point
    """

    grid: tuple[int, int]
    size: int
    channels: int

    @property
    def places(self) -> int:
        """How many there are, P."""
        return self.grid[0] * self.grid[1]

    @property
    def width(self) -> int:
        """Values of a window, F."""
        return self.size**2 * self.channels

    def pixels(self, place: np.ndarray) -> np.ndarray:
        """The pixels of the windows at places (...), row by row, (..., size^2)."""
        step = np.arange(self.size)
        row = (place[..., None] // self.grid[1] + step) % self.grid[0]
        column = (place[..., None] % self.grid[1] + step) % self.grid[1]
        return (row[..., :, None] * self.grid[1] + column[..., None, :]).reshape(*place.shape, -1)

    def at(self, Y: np.ndarray, row: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The windows of points (n, D) that are named by their rows (m,), each at a place (m,); (m, F)."""
        images = Y.reshape(len(Y), self.places, self.channels)
        return images[row[:, None], self.pixels(place)].reshape(len(row), self.width)

    def of(self, Y: np.ndarray) -> np.ndarray:
        """All windows of points (n, D), those of a point one after the other, (n P, F)."""
        images = Y.reshape(len(Y), self.grid[0], self.grid[1] * self.channels)
        beyond = self.size - 1
        images = np.concatenate([images, images[:, :beyond]], 1)
        images = np.concatenate([images, images[:, :, : beyond * self.channels]], 2)
        shape = self.size, self.size * self.channels
        views = np.lib.stride_tricks.sliding_window_view(images, shape, (1, 2))[:, :, :: self.channels]
        return views.reshape(len(Y) * self.places, self.width)
