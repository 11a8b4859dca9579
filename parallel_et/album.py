"""Filtered images, and the patches that are cut from them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from parallel_et.errors import UserError
from parallel_et.io.images import grey, open_images
from parallel_et.preparation import Steps, filter_image
from parallel_et.random import stream

KEEP = 1 << 29
"""Bytes of filtered images that a rank keeps, if all fit."""
DRAWN = 4096
"""Places that are drawn at a time; fixed for ever, so that a place depends on the seed and its number alone."""


@dataclass(frozen=True)
class Entry:
    """One image of a file: its number there, its size, its largest magnitude after filtering, the file's state."""

    file: str
    number: int
    height: int
    width: int
    largest: float
    state: tuple[int, int]


class Album:
    """The filtered images of some files; all are kept where they fit into ``KEEP``, else the last one.

    Before each image ``between`` is called, which may raise to end long work.
    """

    def __init__(self, steps: Steps, size: int, between: Callable[[], None] = lambda: None) -> None:
        self.steps, self.size, self.between = steps, size, between
        self.entries: list[Entry] = []
        self._kept: dict[tuple[str, int], np.ndarray] = {}
        self._opened: tuple[str, Sequence[np.ndarray]] = ("", ())
        self._bytes = 0
        self.keeps = True

    def look(self, file: str) -> list[Entry]:
        """All images of a file, filtered and checked; UserError if one is bad."""
        entries = []
        for number, stored in enumerate(open_images(file)):
            self.between()
            height, width = stored.shape[:2]
            if min(height, width) < self.size:
                raise UserError(f"{file}: expected at least {self.size} x {self.size} pixels, found {height} x {width}")
            image = filter_image(grey(stored), self.steps)
            if not np.isfinite(image).all():
                raise UserError(f"{file}: expected finite numbers of single precision, found others")
            state = os.stat(file if os.path.exists(file) else file.rpartition(":")[0])
            entries.append(
                Entry(file, number, height, width, float(np.abs(image).max()), (state.st_size, state.st_mtime_ns))
            )
            if self.keeps:
                self._kept[file, number] = image
                self._bytes += image.nbytes
                self.keeps = self._bytes <= KEEP
        if not entries:
            raise UserError(f"{file}: expected images, found none")
        return entries

    def settle(self, entries: Sequence[Entry]) -> None:
        """From now on these are the images of all ranks, by number."""
        self.entries = list(entries)
        self.keeps = sum(4 * entry.height * entry.width for entry in entries) <= KEEP
        if not self.keeps:
            self._kept.clear()

    def image(self, index: int) -> np.ndarray:
        """A filtered image, (height, width) float32."""
        entry = self.entries[index]
        key = entry.file, entry.number
        if key not in self._kept:
            self.between()
            if self._opened[0] != entry.file:  # a stack of many is opened once
                self._opened = entry.file, open_images(entry.file)
            stored = self._opened[1][entry.number]
            if stored.shape[:2] != (entry.height, entry.width):
                raise UserError(f"{entry.file}: expected the image that was there before, found another")
            if not self.keeps:
                self._kept.clear()
            self._kept[key] = filter_image(grey(stored), self.steps)
        return self._kept[key]

    def cut(self, images: np.ndarray, tops: np.ndarray, lefts: np.ndarray) -> np.ndarray:
        """Patches (n, size, size) float32 of given images at given places; each image is taken once."""
        patches = np.empty((len(images), self.size, self.size), np.float32)
        order = np.argsort(images, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(images[order])) + 1):
            windows = sliding_window_view(self.image(int(images[run[0]])), (self.size, self.size))
            patches[run] = windows[tops[run], lefts[run]]
        return patches


class Places:
    """Where patch 0, 1, … lies: all places in turn, or ``count`` that are drawn, each place as likely as any other.

    Parameters
    ----------
    stride : pixels from one place to the next; 1 where places are drawn
    """

    def __init__(self, entries: Sequence[Entry], size: int, count: int | None, stride: int, seed: int) -> None:
        self.stride, self.seed = stride, seed
        grids = [((e.height - size) // stride + 1, (e.width - size) // stride + 1) for e in entries]
        self._columns = np.array([columns for _, columns in grids])
        self._ends = np.cumsum([rows * columns for rows, columns in grids])
        self.total = int(self._ends[-1])
        self.drawn = count is not None
        self.points = self.total if count is None else count

    def of(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Image, top and left of the patches [first, last)."""
        places = self._draw(first, last) if self.drawn else np.arange(first, last)
        images = np.searchsorted(self._ends, places, side="right")
        inside = places - np.concatenate([[0], self._ends])[images]
        tops, lefts = np.divmod(inside, self._columns[images])
        return images, tops * self.stride, lefts * self.stride

    def _draw(self, first: int, last: int) -> np.ndarray:
        groups = range(first // DRAWN, -(-last // DRAWN))
        drawn = [stream(self.seed, "patches", group).integers(0, self.total, DRAWN) for group in groups]
        return np.concatenate(drawn)[first - groups[0] * DRAWN :][: last - first]
