"""Reconstruction of pictures from their overlapping patches, by all ranks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from parallel_et.control.progress import Reporter
from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.exact_sum import ExactSum
from parallel_et.preprocessing.cutting import MEANS_TABLE
from parallel_et.preprocessing.find_files import file_suffix
from parallel_et.preprocessing.images import open_images, to_grey, to_rgb
from parallel_et.storage.atomic import write_atomically
from parallel_et.storage.error_translation import translate_errors
from parallel_et.storage.hdf5 import read_array, read_attributes, split_location
from parallel_et.storage.row_pass import split_rows
from parallel_et.storage.row_tables import read_rows, refuse_unwritable

INVERTIBLE_STEPS = ("noise", "cut", "mean-free", "on-off", "scale")
"""Steps that can be undone, so that pictures can be reconstructed."""
OUTPUT_SUFFIXES = (".png", ".npy")
BAND_BYTES = 1 << 22
"""Bytes of patches that are summed at once; at least one row of places."""


@dataclass(frozen=True)
class PatchLayout:
    """The images, places and steps of a file of patches, as needed to reconstruct the images.

    Attributes
    ----------
    path : the file of patches
    images : metadata of each image
    size, stride : side of a patch, and distance of neighbouring patches, in pixels
    channels : 3 for colours, else 1
    mean_free, on_off, scale : steps to undo
    has_truth : True if the file has the images without noise
    """

    path: str
    images: Sequence[dict[str, Any]]
    size: int
    stride: int
    channels: int
    mean_free: bool
    on_off: bool
    scale: dict[str, list[float]] | None
    has_truth: bool

    @classmethod
    def from_metadata(cls, path: str, metadata: dict[str, str]) -> "PatchLayout":
        """Read the layout from the attributes of a file. Raise UserError if the images cannot be reconstructed."""
        with translate_errors(path, "attributes with the steps and images of patches"):
            return cls._from_metadata(path, metadata)

    @classmethod
    def _from_metadata(cls, path: str, metadata: dict[str, str]) -> "PatchLayout":
        steps = {step["step"]: step for step in json.loads(metadata["steps"])}
        if lost := [step for step in steps if step not in INVERTIBLE_STEPS]:
            raise UserError(f"{path}: expected only steps that can be undone, found {', '.join(lost)}")
        cut = steps["cut"]
        if cut["places"] != "all":
            raise UserError(f"{path}: expected patches of all places (--all), found random places")
        images = json.loads(metadata["images"])
        options = ("mean-free" in steps, "on-off" in steps, steps.get("scale"))
        layout = cls(
            path, images, cut["size"], cut["stride"], len(cut.get("channels", "g")), *options, "noise" in steps
        )
        for number, image in enumerate(images):
            if any((image[side] - layout.size) % layout.stride for side in ("height", "width")):
                found = f"a --stride that leaves out an edge of image {number}, {image['height']} x {image['width']}"
                raise UserError(f"{path}: expected patches that reach all edges, found {found}")
        return layout

    def grid_shape(self, number: int) -> tuple[int, int]:
        """Return rows and columns of the places of patches in an image."""
        rows, columns = ((self.images[number][side] - self.size) // self.stride + 1 for side in ("height", "width"))
        return rows, columns

    def shape(self, number: int) -> tuple[int, int, int]:
        """Return height, width and channels of an image."""
        return self.images[number]["height"], self.images[number]["width"], self.channels

    def undo_steps(self, rows: np.ndarray, means: np.ndarray | None) -> np.ndarray:
        """Undo the steps on rows (n, D). Return patches (n, size, size, channels) as in the image."""
        if self.scale is not None:
            (smallest, largest), (low, high) = self.scale["from"], self.scale["to"]
            rows = smallest + (rows - low) * ((largest - smallest) / (high - low))
        if self.on_off:
            half = rows.shape[1] // 2
            rows = rows[:, :half] - rows[:, half:]
        if means is not None:
            rows = rows + means[:, None]
        return rows.reshape(len(rows), self.size, self.size, self.channels)

    def count_patches(self, number: int) -> np.ndarray:
        """Count the patches that contain each pixel, (height, width, 1)."""
        sides = []
        for count, length in zip(self.grid_shape(number), self.shape(number), strict=False):
            side = np.zeros(length)
            for offset in range(self.size):
                side[offset : offset + (count - 1) * self.stride + 1 : self.stride] += 1
            sides.append(side)
        return np.outer(*sides)[..., None]


@dataclass(frozen=True)
class Merge:
    """Options of ``merge``, which reconstructs pictures from their patches.

    Parameters
    ----------
    patches : a posterior of patches, as written by ``infer``, or a file of patches
    output : a picture, or a folder for several pictures
    truth : the picture without noise, to report the error
    peak : value of white
    fresh : replace an existing output
    quiet : print errors only
    """

    patches: str
    output: str
    truth: str | None = None
    peak: float = 255.0
    fresh: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.peak < np.inf:
            raise UserError(f"--peak: expected a positive number, found {self.peak}")

    def merge(self, ranks: Ranks) -> int:
        """Reconstruct and write all pictures, and report their errors; collective. Return the exit code."""
        report = Reporter(ranks.is_root, self.quiet)
        ranks.limit_threads()
        layout, source = ranks.from_root(self._find_patches)
        names = ranks.from_root(lambda: self._output_names(layout))
        ranks.load_kernels()
        first = 0
        for number, name in enumerate(names):
            sums = self._sum_patches(ranks, layout, source, first, number)
            report.log(ranks.from_root(partial(self._finish_image, layout, number, name, sums)))
            first += prod(layout.grid_shape(number))
        return 0

    def _finish_image(self, layout: PatchLayout, number: int, name: str, sums: np.ndarray) -> str:
        """Write an image from the sums over its patches. Return the line for the log."""
        image = sums / layout.count_patches(number)
        error, (height, width, _) = self._format_error(layout, number, image), image.shape
        self._write(name, image)
        patches = prod(layout.grid_shape(number))
        return f"{name}: {height} x {width} pixels of {patches} patches{error}{self._range_warning(image)}"

    def _find_patches(self) -> tuple[PatchLayout, FileRows]:
        """Find the layout of the patches, and the rows to merge."""
        metadata, place = read_attributes(self.patches), f"{self.patches}:/patches"
        if "steps" in metadata and "images" in metadata:
            layout = PatchLayout.from_metadata(self.patches, metadata)
        elif "data" in metadata and "params sha256" in metadata:
            path, dataset = split_location(metadata["data"])
            data = FileRows(metadata["data"])
            there = read_attributes(path) if dataset.strip("/") == "patches" else {}
            if "images" not in there:
                raise UserError(
                    f"{self.patches}: expected the posterior of patches of images, found {metadata['data']}"
                )
            if data.version() != metadata["data state"]:
                found = f"{path} of {data.version()}"
                raise UserError(f"{self.patches}: expected data of {metadata['data state']}, found {found}")
            layout, place = PatchLayout.from_metadata(path, there), f"{self.patches}:/reconstruction"
        else:
            raise UserError(f"{self.patches}: expected a file of infer or of patches, found another")
        source = FileRows(place)
        patches = sum(prod(layout.grid_shape(number)) for number in range(len(layout.images)))
        if source.points != patches:
            raise UserError(f"{place}: expected the {patches} patches of {layout.path}, found {source.points}")
        return layout, source

    def _output_names(self, layout: PatchLayout) -> list[str]:
        """Return the names of the output files, one for each image."""
        several = len(layout.images) > 1
        if self.truth is not None and several:
            raise UserError(f"--truth: expected one image, found {len(layout.images)} in {layout.path}")
        if several:
            if file_suffix(self.output):
                raise UserError(f"--output: expected a folder for {len(layout.images)} images, found {self.output}")
            names = [f"{self.output}/{name}.png" for name in distinct_stems(layout.images)]
        else:
            if file_suffix(self.output) not in OUTPUT_SUFFIXES:
                raise UserError(
                    f"--output: expected a name that ends in {' or '.join(OUTPUT_SUFFIXES)}, found {self.output}"
                )
            names = [self.output]
        for name in names:
            if Path(name).exists() and (not self.fresh or Path(name).is_dir()):
                raise UserError(f"{name}: expected the name of a new file, found a file; --fresh replaces it")
        return names

    def _sum_patches(self, ranks: Ranks, layout: PatchLayout, source: FileRows, first: int, number: int) -> np.ndarray:
        """Sum all patches of an image, beginning with row ``first``. Return the sums on the root; collective."""
        (rows, columns), (height, width, channels) = layout.grid_shape(number), layout.shape(number)
        some = max(1, BAND_BYTES // (8 * source.dims * columns))
        bands = split_rows(rows, some, some)
        mine = bands[len(bands) * ranks.rank // ranks.size : len(bands) * (ranks.rank + 1) // ranks.size]

        def patches(top: int, bottom: int) -> np.ndarray:
            low, high = first + top * columns, first + bottom * columns
            means = read_rows(Path(layout.path), MEANS_TABLE, low, high) if layout.mean_free else None
            values = source.read(low, high)[:, : source.dims].astype(np.float64)
            return layout.undo_steps(values, means).reshape(bottom - top, columns, layout.size, layout.size, channels)

        largest = 0.0
        with ranks.synchronise_errors():
            for top, bottom in mine:
                largest = max(largest, float(np.abs(patches(top, bottom)).max()))
            if not np.isfinite(largest):
                raise UserError(f"{source.name}: expected finite numbers, found others")
        sums = ExactSum({"image": (height, width, channels)})
        sums.reset({"image": ranks.max(largest)}, rows * columns, some * columns)
        step = layout.stride
        with ranks.synchronise_errors():
            for top, bottom in mine:
                band = np.zeros(((bottom - top - 1) * step + layout.size, width, channels))
                values = patches(top, bottom)
                down, right = (bottom - top - 1) * step + 1, (columns - 1) * step + 1
                for y, x in np.ndindex(layout.size, layout.size):
                    band[y : y + down : step, x : x + right : step] += values[:, :, y, x]
                sums.add("image", band, top * step * width * channels)
            sums.check()
        return sums.on_root(ranks).get("image", np.empty(0))

    def _format_error(self, layout: PatchLayout, number: int, image: np.ndarray) -> str:
        """Format the error in dB. The text is empty if the picture without noise is unknown."""
        if self.truth is not None:
            stored = open_images(self.truth)[0]
            truth = to_rgb(stored) if layout.channels == 3 else to_grey(stored)
        elif layout.has_truth:
            truth = read_array(layout.path, f"truth/{number}")
        else:
            return ""
        if truth.shape[:2] != image.shape[:2]:
            wanted, found = (" x ".join(map(str, shape[:2])) for shape in (image.shape, truth.shape))
            raise UserError(f"{self.truth or layout.path}: expected an image of {wanted} pixels, found {found}")
        error = float(((image - truth.reshape(image.shape)) ** 2).mean())
        return f", {10 * np.log10(self.peak**2 / error):.2f} dB" if error else ", without error"

    def _range_warning(self, image: np.ndarray) -> str:
        """Return a hint if the values of the picture do not fit ``--peak``, else an empty text."""
        outside = float(((image < -0.5 * self.peak) | (image > 1.5 * self.peak)).mean())
        dark = image.max() < self.peak / 50
        return "; is --peak the value of white?" if outside > 0.01 or dark else ""

    def _write(self, name: str, image: np.ndarray) -> None:
        values = image[..., 0] if image.shape[2] == 1 else image
        file = BytesIO()
        if file_suffix(name) == ".npy":
            np.save(file, values)
        else:
            Image.fromarray(np.rint(np.clip(values * (255 / self.peak), 0, 255)).astype(np.uint8)).save(file, "PNG")
        with refuse_unwritable(Path(name)):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(name), file.getvalue())


def distinct_stems(images: Sequence[dict[str, Any]]) -> list[str]:
    """Return a distinct name for each image: the stem of its file, with the number of the image if stems repeat."""
    stems = [Path(image["file"]).stem for image in images]
    return [stem if stems.count(stem) == 1 else f"{stem}-{number}" for number, stem in enumerate(stems)]
