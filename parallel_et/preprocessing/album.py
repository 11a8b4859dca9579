"""Filtered images, and the patches that are cut from them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from parallel_et.core.random import stream
from parallel_et.errors import UserError
from parallel_et.preprocessing.filters import Zca, filter_image, prepare
from parallel_et.preprocessing.images import coloured, grey, open_images
from parallel_et.storage.error_translation import check_room

PIXEL, FILTER = 12, 32
"""Bytes of memory for a value of an image: in double and single precision, and for the filters besides."""
KEEP = 1 << 29
"""Bytes of filtered images that a rank keeps, if all fit."""
DRAWN = 4096
"""Places that are drawn at a time; fixed for ever, so that a place depends on the seed and its number alone."""


@dataclass(frozen=True)
class Entry:
    """One image of a file: its number there; filtered, its size and largest magnitude; the file's state, what to note.

    A recording is an image one pixel high.
    """

    file: str
    number: int
    height: int
    width: int
    largest: float
    state: tuple[int, int]
    notes: Mapping[str, Any] = field(default_factory=dict)


class Album:
    """The filtered images of some files; all are kept where they fit into ``KEEP``, else the last one.

    Before each image ``between`` is called, which may raise to end long work. With ``colour`` pixels are red, green
    and blue, (height, width, 3), else grey.
    """

    kind, unit = "images", "patches"

    def __init__(
        self,
        steps: Any,
        size: tuple[int, int],
        between: Callable[[], None] = lambda: None,
        colour: bool = False,
    ) -> None:
        self.steps, self.size, self.between, self.colour = steps, size, between, colour
        self.entries: list[Entry] = []
        self._kept: dict[tuple[str, int], np.ndarray] = {}
        self._opened: tuple[str, Sequence[Any]] = ("", ())
        self._bytes = 0
        self.keeps = True

    @property
    def patch(self) -> tuple[int, ...]:
        """Shape of a patch as it is cut."""
        return (*self.size, 3) if self.colour else self.size

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a patch as it is written."""
        return (2, *self.size) if self.steps.on_off else self.patch

    @property
    def whitening(self) -> float | None:
        """What is added to the variances, if patches are whitened by the covariance of all."""
        return self.steps.zca

    @property
    def mean_free(self) -> bool:
        """Whether each patch has its mean subtracted, which is then kept beside it."""
        return self.steps.mean_free

    @property
    def ranging(self) -> str | None:
        """The option that needs the smallest and largest value of all patches, if it is used."""
        return None if self.steps.scale is None else "--scale"

    def open(self, file: str) -> Sequence[Any]:
        """What a file holds, as it is stored."""
        return open_images(file)

    def filtered(self, file: str, stored: Any, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        """An image with all steps on whole images taken, (height, width) float32, and what to note of it.

        Of colours each by itself, (height, width, 3).
        """
        height, width = stored.shape[:2]
        self.check_size(file, height, width)
        filters = self.steps.clamp is not None or self.steps.dog is not None or self.steps.whiten
        size = (PIXEL + FILTER * filters) * height * width * (3 if self.colour else 1)
        check_room(file, f"an image of {height} x {width} pixels", size)
        image = self.pixels(stored)
        if self.steps.noise is not None:
            image = self.steps.noise.add(image, file, number)
        if self.colour:
            return np.stack([filter_image(channel, self.steps) for channel in np.moveaxis(image, 2, 0)], 2), {}
        return filter_image(image, self.steps), {}

    def pixels(self, stored: Any) -> np.ndarray:
        """The grey values or the colours of an image, float64."""
        return coloured(stored) if self.colour else grey(stored)

    def check_size(self, file: str, height: int, width: int) -> None:
        """Refuse an image that is smaller than a patch."""
        if height < self.size[0] or width < self.size[1]:
            expected = " x ".join(map(str, self.size))
            raise UserError(f"{file}: expected at least {expected} pixels, found {height} x {width}")

    def prepare(self, patches: np.ndarray, zca: Zca | None, span: tuple[float, float] | None) -> np.ndarray:
        """The steps on patches (n, *size), as far as ``zca`` and ``span`` are known yet."""
        return prepare(patches, self.steps, zca, span)

    def about(self, entry: Entry) -> dict[str, Any]:
        """An image in plain words."""
        return {"file": entry.file, "number": entry.number, "height": entry.height, "width": entry.width}

    def about_cut(self) -> dict[str, Any]:
        """The size of a patch in plain words."""
        return {"size": self.size[0], **({"channels": ["red", "green", "blue"]} if self.colour else {})}

    def attributes(self) -> dict[str, Any]:
        """What else to store with the patches."""
        return {}

    def look(self, file: str) -> list[Entry]:
        """All images of a file, filtered and checked; UserError if one is bad."""
        entries = []
        for number, stored in enumerate(self.open(file)):
            self.between()
            with np.errstate(all="ignore"):  # numbers that are not finite are refused below
                image, notes = self.filtered(file, stored, number)
            if not np.isfinite(image).all():
                raise UserError(f"{file}: expected finite numbers of single precision, found others")
            (height, width), largest = image.shape[:2], float(np.abs(image).max())
            entries.append(Entry(file, number, height, width, largest, state_of(file), notes))
            if self.keeps:
                self._kept[file, number] = image
                self._bytes += image.nbytes
                self.keeps = self._bytes <= KEEP
        if not entries:
            raise UserError(f"{file}: expected {self.kind}, found none")
        return entries

    def settle(self, entries: Sequence[Entry]) -> None:
        """From now on these are the images of all ranks, by number."""
        self.entries = list(entries)
        pixel = 12 if self.colour else 4
        self.keeps = sum(pixel * entry.height * entry.width for entry in entries) <= KEEP
        if not self.keeps:
            self._kept.clear()

    def image(self, index: int) -> np.ndarray:
        """A filtered image, (height, width) or (height, width, 3) float32."""
        entry = self.entries[index]
        key = entry.file, entry.number
        if key not in self._kept:
            image, _ = self.filtered(entry.file, self._stored(entry), entry.number)
            self._check(entry)
            if not self.keeps:
                self._kept.clear()
            self._kept[key] = image
        return self._kept[key]

    def truth(self) -> dict[str, np.ndarray]:
        """If noise was added, all images without it and without any other step, by ``truth/number``."""
        if self.steps.noise is None:
            return {}
        if not self.keeps:
            raise UserError(f"--noise: expected images of at most {KEEP} bytes in all, found more")
        found = {}
        for number, entry in enumerate(self.entries):
            found[f"truth/{number}"] = self.pixels(self._stored(entry)).astype(np.float32)
            self._check(entry)
        return found

    def _stored(self, entry: Entry) -> Any:
        """An image as it is stored; a stack of many is opened once."""
        self.between()
        if self._opened[0] != entry.file:
            self._opened = entry.file, self.open(entry.file)
        return self._opened[1][entry.number]

    def _check(self, entry: Entry) -> None:
        if state_of(entry.file) != entry.state:
            raise UserError(f"{entry.file}: expected the file that was looked at, found it changed since")

    def cut(self, images: np.ndarray, tops: np.ndarray, lefts: np.ndarray) -> np.ndarray:
        """Patches (n, *patch) float32 of given images at given places; each image is taken once."""
        patches = np.empty((len(images), *self.patch), np.float32)
        order = np.argsort(images, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(images[order])) + 1):
            windows = sliding_window_view(self.image(int(images[run[0]])), self.size, (0, 1))
            found = windows[tops[run], lefts[run]]
            patches[run] = np.moveaxis(found, 1, 3) if self.colour else found
        return patches


def state_of(file: str) -> tuple[int, int]:
    """What tells a file, or that of ``file.mat:variable``, from another of its name."""
    path = file if os.path.exists(file) else file.rpartition(":")[0]
    try:
        found = os.stat(path or file)
    except OSError as error:
        raise UserError(f"{file}: expected the file that was looked at, found {error.strerror}") from None
    return found.st_size, found.st_mtime_ns


class Places:
    """Where patch 0, 1, … lies: all places in turn, or ``count`` that are drawn, each place as likely as any other.

    Parameters
    ----------
    stride : pixels from one place to the next; 1 where places are drawn
    """

    def __init__(self, album: Album, count: int | None, stride: int, seed: int) -> None:
        self.stride, self.seed, self._purpose = stride, seed, album.unit
        (high, wide), entries = album.size, album.entries
        grids = [((e.height - high) // stride + 1, (e.width - wide) // stride + 1) for e in entries]
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
        drawn = [stream(self.seed, self._purpose, group).integers(0, self.total, DRAWN) for group in groups]
        return np.concatenate(drawn)[first - groups[0] * DRAWN :][: last - first]
