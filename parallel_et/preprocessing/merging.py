"""Pictures put together again of their overlapping patches, by all ranks."""

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
from parallel_et.preprocessing.cutting import MEANS
from parallel_et.preprocessing.find_files import ending
from parallel_et.preprocessing.images import coloured, grey, open_images
from parallel_et.storage.atomic import write_whole
from parallel_et.storage.error_translation import gate
from parallel_et.storage.hdf5 import read_array, read_attributes, split_place
from parallel_et.storage.row_pass import pieces
from parallel_et.storage.row_tables import place_for, read_rows

UNDONE = ("noise", "cut", "mean-free", "on-off", "scale")
"""Steps after which a picture can be put together again."""
ENDINGS = (".png", ".npy")
BAND = 1 << 22
"""Bytes of patches that are put together at a time, at least those of a row of places."""


@dataclass(frozen=True)
class Cut:
    """How a file of patches was cut: what is needed to put them together again.

    Attributes
    ----------
    images : what the file says of each image
    size, stride : side of a patch, pixels from one to the next
    channels : 3 of colours, else 1
    known : whether the images are there without noise
    """

    path: str
    images: Sequence[dict[str, Any]]
    size: int
    stride: int
    channels: int
    mean_free: bool
    on_off: bool
    scale: dict[str, list[float]] | None
    known: bool

    @classmethod
    def of(cls, path: str, about: dict[str, str]) -> "Cut":
        """What the attributes of a file say; UserError if its patches cannot be put together."""
        with gate(path, "what patches says of its steps and images"):
            return cls._of(path, about)

    @classmethod
    def _of(cls, path: str, about: dict[str, str]) -> "Cut":
        steps = {step["step"]: step for step in json.loads(about["steps"])}
        if lost := [step for step in steps if step not in UNDONE]:
            raise UserError(f"{path}: expected patches without steps that cannot be undone, found {', '.join(lost)}")
        cut = steps["cut"]
        if cut["places"] != "all":
            raise UserError(f"{path}: expected patches of all places (--all), found places that were drawn")
        images, known = json.loads(about["images"]), "noise" in steps
        options = ("mean-free" in steps, "on-off" in steps, steps.get("scale"))
        merge = cls(path, images, cut["size"], cut["stride"], len(cut.get("channels", "g")), *options, known)
        for number, image in enumerate(images):
            if any((image[side] - merge.size) % merge.stride for side in ("height", "width")):
                found = f"a --stride that leaves some of image {number} out, {image['height']} x {image['width']}"
                raise UserError(f"{path}: expected patches that reach all edges, found {found}")
        return merge

    def grid(self, number: int) -> tuple[int, int]:
        """Rows and columns of the places of patches in an image."""
        rows, columns = ((self.images[number][side] - self.size) // self.stride + 1 for side in ("height", "width"))
        return rows, columns

    def shape(self, number: int) -> tuple[int, int, int]:
        """Of an image: height, width, channels."""
        return self.images[number]["height"], self.images[number]["width"], self.channels

    def restore(self, rows: np.ndarray, means: np.ndarray | None) -> np.ndarray:
        """Patches as they were in the image, (n, size, size, channels), of rows (n, D) after the steps."""
        if self.scale is not None:
            (smallest, largest), (low, high) = self.scale["from"], self.scale["to"]
            rows = smallest + (rows - low) * ((largest - smallest) / (high - low))
        if self.on_off:
            half = rows.shape[1] // 2
            rows = rows[:, :half] - rows[:, half:]
        if means is not None:
            rows = rows + means[:, None]
        return rows.reshape(len(rows), self.size, self.size, self.channels)

    def coverage(self, number: int) -> np.ndarray:
        """How many patches have a pixel, (height, width, 1)."""
        sides = []
        for count, length in zip(self.grid(number), self.shape(number), strict=False):
            side = np.zeros(length)
            for offset in range(self.size):
                side[offset : offset + (count - 1) * self.stride + 1 : self.stride] += 1
            sides.append(side)
        return np.outer(*sides)[..., None]


@dataclass(frozen=True)
class Merge:
    """Pictures to be put together; the options are those of the command.

    Parameters
    ----------
    patches : a posterior that ``infer`` has written of patches, or a file of patches itself
    output : a picture, or a folder for several
    truth : the picture without noise, to tell the error
    peak : what is white
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
        """Put all pictures together, write them and tell their errors; collective. Returns the exit code."""
        report = Reporter(ranks.is_root, self.quiet)
        ranks.limit_threads()
        cut, source = ranks.from_root(self._find)
        names = ranks.from_root(lambda: self._names(cut))
        ranks.load_kernels()
        first = 0
        for number, name in enumerate(names):
            sums = self._sum(ranks, cut, source, first, number)
            report.say(ranks.from_root(partial(self._finish, cut, number, name, sums)))
            first += prod(cut.grid(number))
        return 0

    def _finish(self, cut: Cut, number: int, name: str, sums: np.ndarray) -> str:
        """Write an image, given the sums over its patches; returns what there is to say of it."""
        image = sums / cut.coverage(number)
        error, (height, width, _) = self._error(cut, number, image), image.shape
        self._write(name, image)
        patches = prod(cut.grid(number))
        return f"{name}: {height} x {width} pixels of {patches} patches{error}{self._doubt(image)}"

    def _find(self) -> tuple[Cut, FileRows]:
        """How the patches were cut, and the rows to put together."""
        about, place = read_attributes(self.patches), f"{self.patches}:/patches"
        if "steps" in about and "images" in about:
            cut = Cut.of(self.patches, about)
        elif "data" in about and "params sha256" in about:
            path, dataset = split_place(about["data"])
            data = FileRows(about["data"])
            there = read_attributes(path) if dataset.strip("/") == "patches" else {}
            if "images" not in there:
                raise UserError(f"{self.patches}: expected the posterior of patches of images, found {about['data']}")
            if data.state() != about["data state"]:
                found = f"{path} of {data.state()}"
                raise UserError(f"{self.patches}: expected it to be of {about['data state']}, found {found}")
            cut, place = Cut.of(path, there), f"{self.patches}:/reconstruction"
        else:
            raise UserError(f"{self.patches}: expected a file of infer or of patches, found another")
        source = FileRows(place)
        patches = sum(prod(cut.grid(number)) for number in range(len(cut.images)))
        if source.points != patches:
            raise UserError(f"{place}: expected the {patches} patches of {cut.path}, found {source.points}")
        return cut, source

    def _names(self, cut: Cut) -> list[str]:
        """Of the files to write, one for each image."""
        several = len(cut.images) > 1
        if self.truth is not None and several:
            raise UserError(f"--truth: expected one image, found {len(cut.images)} in {cut.path}")
        if several:
            if ending(self.output):
                raise UserError(f"--output: expected a folder for {len(cut.images)} images, found {self.output}")
            names = [f"{self.output}/{name}.png" for name in distinct_names(cut.images)]
        else:
            if ending(self.output) not in ENDINGS:
                raise UserError(f"--output: expected a name that ends in {' or '.join(ENDINGS)}, found {self.output}")
            names = [self.output]
        for name in names:
            if Path(name).exists() and (not self.fresh or Path(name).is_dir()):
                raise UserError(f"{name}: expected a name that is not taken, found it there; --fresh writes it anew")
        return names

    def _sum(self, ranks: Ranks, cut: Cut, source: FileRows, first: int, number: int) -> np.ndarray:
        """The sums over all patches of an image, of which number ``first`` is the first; on the root."""
        (rows, columns), (height, width, channels) = cut.grid(number), cut.shape(number)
        some = max(1, BAND // (8 * source.dims * columns))
        bands = pieces(rows, some, some)
        mine = bands[len(bands) * ranks.rank // ranks.size : len(bands) * (ranks.rank + 1) // ranks.size]

        def patches(top: int, bottom: int) -> np.ndarray:
            low, high = first + top * columns, first + bottom * columns
            means = read_rows(Path(cut.path), MEANS, low, high) if cut.mean_free else None
            values = source.read(low, high)[:, : source.dims].astype(np.float64)
            return cut.restore(values, means).reshape(bottom - top, columns, cut.size, cut.size, channels)

        largest = 0.0
        with ranks.together():
            for top, bottom in mine:
                largest = max(largest, float(np.abs(patches(top, bottom)).max()))
            if not np.isfinite(largest):
                raise UserError(f"{source.name}: expected finite numbers, found others")
        sums = ExactSum({"image": (height, width, channels)})
        sums.reset({"image": ranks.max(largest)}, rows * columns, some * columns)
        step = cut.stride
        with ranks.together():
            for top, bottom in mine:
                band = np.zeros(((bottom - top - 1) * step + cut.size, width, channels))
                values = patches(top, bottom)
                down, right = (bottom - top - 1) * step + 1, (columns - 1) * step + 1
                for y, x in np.ndindex(cut.size, cut.size):
                    band[y : y + down : step, x : x + right : step] += values[:, :, y, x]
                sums.add("image", band, top * step * width * channels)
            sums.check()
        return sums.on_root(ranks).get("image", np.empty(0))

    def _error(self, cut: Cut, number: int, image: np.ndarray) -> str:
        """The error in words, where the picture is known without noise."""
        if self.truth is not None:
            stored = open_images(self.truth)[0]
            truth = coloured(stored) if cut.channels == 3 else grey(stored)
        elif cut.known:
            truth = read_array(cut.path, f"truth/{number}")
        else:
            return ""
        if truth.shape[:2] != image.shape[:2]:
            wanted, found = (" x ".join(map(str, shape[:2])) for shape in (image.shape, truth.shape))
            raise UserError(f"{self.truth or cut.path}: expected an image of {wanted} pixels, found {found}")
        error = float(((image - truth.reshape(image.shape)) ** 2).mean())
        return f", {10 * np.log10(self.peak**2 / error):.2f} dB" if error else ", without error"

    def _doubt(self, image: np.ndarray) -> str:
        """Whether the picture is meant to be of another range."""
        outside = float(((image < -0.5 * self.peak) | (image > 1.5 * self.peak)).mean())
        dark = image.max() < self.peak / 50
        return "; does --peak say what is white?" if outside > 0.01 or dark else ""

    def _write(self, name: str, image: np.ndarray) -> None:
        values = image[..., 0] if image.shape[2] == 1 else image
        file = BytesIO()
        if ending(name) == ".npy":
            np.save(file, values)
        else:
            Image.fromarray(np.rint(np.clip(values * (255 / self.peak), 0, 255)).astype(np.uint8)).save(file, "PNG")
        with place_for(Path(name)):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(Path(name), file.getvalue())


def distinct_names(images: Sequence[dict[str, Any]]) -> list[str]:
    """Names for images by those of their files; where these are not enough, with their numbers among all."""
    stems = [Path(image["file"]).stem for image in images]
    return [stem if stems.count(stem) == 1 else f"{stem}-{number}" for number, stem in enumerate(stems)]
