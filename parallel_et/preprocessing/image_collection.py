"""Collections of filtered images, and the positions of patches in them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from parallel_et.core.random import stream
from parallel_et.errors import UserError
from parallel_et.preprocessing.filters import Zca, apply_patch_steps, filter_image
from parallel_et.preprocessing.images import open_images, to_grey, to_rgb
from parallel_et.storage.error_translation import check_fits_memory

PIXEL_BYTES = 12
"""Bytes of memory per value of an image, stored in double and in single precision."""
FILTER_BYTES = 32
"""Additional bytes of memory for a value of an image while filters are applied."""
IMAGE_CACHE_BYTES = 1 << 29
"""Bytes of filtered images up to which a rank keeps all of them in memory."""
PLACES_PER_DRAW = 4096
"""Random positions per call of the generator. Never change it: the positions of a seed depend on it."""


@dataclass(frozen=True)
class ImageInfo:
    """A filtered image of a file. A recording is an image one pixel high.

    Attributes
    ----------
    file, number : the file, and the index of the image in it
    height, width : size after the steps on whole images
    largest : largest magnitude of a value
    file_state : size and modification time of the file
    metadata : further facts about the image, written with the patches
    """

    file: str
    number: int
    height: int
    width: int
    largest: float
    file_state: tuple[int, int]
    metadata: Mapping[str, Any] = field(default_factory=dict)


class ImageCollection:
    """The filtered images of several files.

    All images are kept in memory if they fit into ``IMAGE_CACHE_BYTES``. Otherwise only the last image is kept.

    Parameters
    ----------
    steps : ``Steps`` of the preparation
    size : height and width of a patch
    before_image : called before each image; it may raise to end long work
    colour : pixels are red, green and blue, (height, width, 3); else grey
    """

    kind, unit = "images", "patches"

    def __init__(
        self,
        steps: Any,
        size: tuple[int, int],
        before_image: Callable[[], None] = lambda: None,
        colour: bool = False,
    ) -> None:
        self.steps, self.size, self.before_image, self.colour = steps, size, before_image, colour
        self.entries: list[ImageInfo] = []
        self._cache: dict[tuple[str, int], np.ndarray] = {}
        self._opened: tuple[str, Sequence[Any]] = ("", ())
        self._bytes = 0
        self.all_cached = True

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """Shape of a patch as cut from an image."""
        return (*self.size, 3) if self.colour else self.size

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of a patch as written to the file."""
        return (2, *self.size) if self.steps.on_off else self.patch_shape

    @property
    def zca_epsilon(self) -> float | None:
        """Constant that ZCA whitening adds to the variances, or None without ZCA whitening."""
        return self.steps.zca

    @property
    def mean_free(self) -> bool:
        """True if the mean of each patch is subtracted. The means are then written to a table."""
        return self.steps.mean_free

    @property
    def option_that_needs_range(self) -> str | None:
        """The option in use that needs the smallest and largest value of all patches, or None."""
        return None if self.steps.scale is None else "--scale"

    def open(self, file: str) -> Sequence[Any]:
        """Open the images of a file as stored."""
        return open_images(file)

    def apply_image_steps(self, file: str, stored: Any, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Return an image after all steps on whole images, float32, and its metadata.

        The shape is (height, width), or (height, width, 3) with each colour filtered separately.
        """
        height, width = stored.shape[:2]
        self.check_size(file, height, width)
        filters = self.steps.clamp is not None or self.steps.dog is not None or self.steps.whiten
        size = (PIXEL_BYTES + FILTER_BYTES * filters) * height * width * (3 if self.colour else 1)
        check_fits_memory(file, f"an image of {height} x {width} pixels", size)
        image = self.pixel_values(stored)
        if self.steps.noise is not None:
            image = self.steps.noise.add(image, file, number)
        if self.colour:
            return np.stack([filter_image(channel, self.steps) for channel in np.moveaxis(image, 2, 0)], 2), {}
        return filter_image(image, self.steps), {}

    def pixel_values(self, stored: Any) -> np.ndarray:
        """Return the grey values or the colours of an image, float64."""
        return to_rgb(stored) if self.colour else to_grey(stored)

    def check_size(self, file: str, height: int, width: int) -> None:
        """Refuse an image that is smaller than a patch."""
        if height < self.size[0] or width < self.size[1]:
            expected = " x ".join(map(str, self.size))
            raise UserError(f"{file}: expected at least {expected} pixels, found {height} x {width}")

    def apply_patch_steps(self, patches: np.ndarray, zca: Zca | None, span: tuple[float, float] | None) -> np.ndarray:
        """Apply the steps on patches (n, *size). Skip whitening without ``zca``, and scaling without ``span``."""
        return apply_patch_steps(patches, self.steps, zca, span)

    def image_metadata(self, entry: ImageInfo) -> dict[str, Any]:
        """Return the metadata of an image."""
        return {"file": entry.file, "number": entry.number, "height": entry.height, "width": entry.width}

    def cut_metadata(self) -> dict[str, Any]:
        """Return the metadata of the cut: the size of a patch, and its channels."""
        return {"size": self.size[0], **({"channels": ["red", "green", "blue"]} if self.colour else {})}

    def attributes(self) -> dict[str, Any]:
        """Return further attributes of the output file."""
        return {}

    def inspect(self, file: str) -> list[ImageInfo]:
        """Filter and check all images of a file. Raise UserError for a bad image."""
        entries = []
        for number, stored in enumerate(self.open(file)):
            self.before_image()
            with np.errstate(all="ignore"):  # non-finite numbers are refused below
                image, metadata = self.apply_image_steps(file, stored, number)
            if not np.isfinite(image).all():
                raise UserError(f"{file}: expected finite numbers of single precision, found others")
            (height, width), largest = image.shape[:2], float(np.abs(image).max())
            entries.append(ImageInfo(file, number, height, width, largest, file_state(file), metadata))
            if self.all_cached:
                self._cache[file, number] = image
                self._bytes += image.nbytes
                self.all_cached = self._bytes <= IMAGE_CACHE_BYTES
        if not entries:
            raise UserError(f"{file}: expected {self.kind}, found none")
        return entries

    def set_entries(self, entries: Sequence[ImageInfo]) -> None:
        """Set the images of all ranks, in the order of their numbers."""
        self.entries = list(entries)
        pixel = 12 if self.colour else 4
        self.all_cached = sum(pixel * entry.height * entry.width for entry in entries) <= IMAGE_CACHE_BYTES
        if not self.all_cached:
            self._cache.clear()

    def image(self, index: int) -> np.ndarray:
        """Return a filtered image, (height, width) or (height, width, 3) float32."""
        entry = self.entries[index]
        key = entry.file, entry.number
        if key not in self._cache:
            image, _ = self.apply_image_steps(entry.file, self._stored(entry), entry.number)
            self._check(entry)
            if not self.all_cached:
                self._cache.clear()
            self._cache[key] = image
        return self._cache[key]

    def truth(self) -> dict[str, np.ndarray]:
        """Return all images without noise and without any step, by ``truth/number``; empty if no noise is added."""
        if self.steps.noise is None:
            return {}
        if not self.all_cached:
            raise UserError(f"--noise: expected images of at most {IMAGE_CACHE_BYTES} bytes in total, found more")
        found = {}
        for number, entry in enumerate(self.entries):
            found[f"truth/{number}"] = self.pixel_values(self._stored(entry)).astype(np.float32)
            self._check(entry)
        return found

    def _stored(self, entry: ImageInfo) -> Any:
        """Return an image as stored. A file with several images is opened once."""
        self.before_image()
        if self._opened[0] != entry.file:
            self._opened = entry.file, self.open(entry.file)
        return self._opened[1][entry.number]

    def _check(self, entry: ImageInfo) -> None:
        if file_state(entry.file) != entry.file_state:
            raise UserError(f"{entry.file}: expected the same file as in the first pass, found a changed file")

    def cut(self, images: np.ndarray, tops: np.ndarray, lefts: np.ndarray) -> np.ndarray:
        """Cut patches (n, *patch_shape) float32 from images at given positions. Each image is loaded once."""
        patches = np.empty((len(images), *self.patch_shape), np.float32)
        order = np.argsort(images, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(images[order])) + 1):
            windows = sliding_window_view(self.image(int(images[run[0]])), self.size, (0, 1))
            found = windows[tops[run], lefts[run]]
            patches[run] = np.moveaxis(found, 1, 3) if self.colour else found
        return patches


def file_state(file: str) -> tuple[int, int]:
    """Return size and modification time of a file, also of the file in ``file.mat:variable``."""
    path = file if os.path.exists(file) else file.rpartition(":")[0]
    try:
        found = os.stat(path or file)
    except OSError as error:
        raise UserError(f"{file}: expected the same file as in the first pass, found {error.strerror}") from None
    return found.st_size, found.st_mtime_ns


class PatchPlaces:
    """The positions of the patches: all positions in order, or ``count`` positions drawn uniformly with replacement.

    Parameters
    ----------
    count : number of random positions, or None for all positions
    stride : pixels from one position to the next; 1 for random positions
    """

    def __init__(self, collection: ImageCollection, count: int | None, stride: int, seed: int) -> None:
        self.stride, self.seed, self._purpose = stride, seed, collection.unit
        (high, wide), entries = collection.size, collection.entries
        grids = [((e.height - high) // stride + 1, (e.width - wide) // stride + 1) for e in entries]
        self._columns = np.array([columns for _, columns in grids])
        self._ends = np.cumsum([rows * columns for rows, columns in grids])
        self.total = int(self._ends[-1])
        self.drawn = count is not None
        self.points = self.total if count is None else count

    def locate(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return image, top and left of the patches [first, last)."""
        places = self._draw(first, last) if self.drawn else np.arange(first, last)
        images = np.searchsorted(self._ends, places, side="right")
        inside = places - np.concatenate([[0], self._ends])[images]
        tops, lefts = np.divmod(inside, self._columns[images])
        return images, tops * self.stride, lefts * self.stride

    def _draw(self, first: int, last: int) -> np.ndarray:
        groups = range(first // PLACES_PER_DRAW, -(-last // PLACES_PER_DRAW))
        drawn = [stream(self.seed, self._purpose, group).integers(0, self.total, PLACES_PER_DRAW) for group in groups]
        return np.concatenate(drawn)[first - groups[0] * PLACES_PER_DRAW :][: last - first]
