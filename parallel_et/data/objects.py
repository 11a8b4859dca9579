"""Scenes of objects that hide each other (OCA sec. 4.6). The objects are transparent pictures of a folder."""

from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image
from pydantic import Field

from parallel_et.core.random import stream
from parallel_et.core.schema import MAX_COUNT, MAX_MAGNITUDE
from parallel_et.data.base import GROUP_POINTS, DataOptions, Generated, show_nearest
from parallel_et.errors import UserError

MAX_SIDE_PIXELS = 4096
"""Largest side of scenes and objects, in pixels."""


class ObjectsOptions(DataOptions):
    """The keys of [data] for objects."""

    source: Literal["objects"] = Field("objects", description="scenes of objects that hide each other")
    points: int = Field(ge=1, le=MAX_COUNT, description="number of data points, N")
    folder: str = Field(description="folder of PNG files with transparency, one object per file")
    objects: int | None = Field(
        None, ge=1, le=10_000, description="use this many files, in order of name; default: all"
    )
    grid: int = Field(35, ge=1, le=MAX_SIDE_PIXELS, description="pixels per side of a scene; its background is black")
    size: int = Field(20, ge=1, le=MAX_SIDE_PIXELS, description="pixels per side of the scaled objects")
    places: Literal["fixed", "anywhere"] = Field(
        "fixed",
        description='"fixed": each object has one position and its mean colour; "anywhere": its position is drawn for '
        "each scene and wraps around the edges, and its pixels keep their colours",
    )
    probability: float | None = Field(
        None, gt=0, lt=1, description="probability that an object is in a scene; by default two objects per scene"
    )
    sigma: float = Field(
        0.25, ge=0, le=MAX_MAGNITUDE, description="standard deviation of the noise; colours are in [0, 1]"
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the data; default: run.seed")

    def inconsistencies(self) -> list[tuple[str, str, object]]:
        return [("size", f"at most data.grid = {self.grid}", self.size)] if self.size > self.grid else []


class Scenes(NamedTuple):
    """Scenes of objects at any position.

    Attributes
    ----------
    points : (n, D)
    order : (n, b), depth order of the objects of a scene: 1 for the farthest; 0 for absent objects
    corners : (n, b, 2), row and column of the upper left corner of each object
    visible : (n, b), visible fraction of each object's pixels
    """

    points: np.ndarray
    order: np.ndarray
    corners: np.ndarray
    visible: np.ndarray


class Objects(Generated):
    """Scenes, drawn in groups of points that depend only on the seed and the pictures.

    The mask of an object contains the pixels that are at least half opaque. The depth order is drawn for each scene.
    With places "fixed", the position of an object is drawn once with the seed.
    Its colour is the mean colour of its pixels, weighted by their intensity.
    With places "anywhere", positions are drawn for each scene, and objects have the colours of their pixels.
    """

    Options = ObjectsOptions

    def __init__(self, options: ObjectsOptions, seed: int, job: Any) -> None:
        self.options = options
        self.seed = seed if options.seed is None else options.seed
        self.points, self.dims = options.points, 3 * options.grid**2
        self.shape = (options.grid, options.grid, 3)
        self.files = files_in(Path(options.folder), options.objects)
        self.probability = options.probability or min(0.5, 2 / len(self.files))
        self.anywhere = options.places == "anywhere"
        self.working_bytes = 8 * (len(self.files) * self.dims + 4 * GROUP_POINTS * self.dims)

    def version(self) -> str:
        parts = self.sprites if self.anywhere else self.fixed_objects
        return sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    @cached_property
    def fixed_objects(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the masks of the objects in a scene, (b, pixels) bool, and their colours, (b, 3)."""
        o, rng = self.options, stream(self.seed, "objects")
        masks, colours = np.zeros((len(self.files), o.grid, o.grid), bool), np.empty((len(self.files), 3))
        for mask, colour, file in zip(masks, colours, self.files, strict=True):
            top, left = rng.integers(o.grid - o.size + 1, size=2)
            opaque, pixels = read_object(file, o.size)
            mask[top : top + o.size, left : left + o.size] = opaque
            colour[:] = mean_colour(file, opaque, pixels)
        return masks.reshape(len(masks), -1), colours

    @cached_property
    def sprites(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the masks of the objects, (b, size^2) bool, and the colours of their pixels, (b, size^2, 3)."""
        read = [read_object(file, self.options.size) for file in self.files]
        for file, (mask, pixels) in zip(self.files, read, strict=True):
            mean_colour(file, mask, pixels)  # refuses invisible objects
        masks = np.array([mask.ravel() for mask, _ in read])
        return masks, np.array([pixels.reshape(-1, 3) for _, pixels in read]) * masks[..., None]

    def truth(self) -> dict[str, np.ndarray]:
        masks, colours = self.sprites if self.anywhere else self.fixed_objects
        others = {"sigma": np.array(self.options.sigma), "pi": np.full(len(masks), self.probability)}
        return {"W": masks.T.astype(np.float64), "T": colours.reshape(len(masks), -1).T.copy(), **others}

    def scenes(self, index: int) -> Scenes:
        """Return one group of scenes with objects at any position, without noise."""
        (masks, colours), o = self.sprites, self.options
        rng = stream(self.seed, "data", index)
        s = rng.random((GROUP_POINTS, len(masks))) < self.probability
        near, corners = np.where(s, 1 - rng.random(s.shape), 0.0), rng.integers(o.grid, size=(*s.shape, 2))
        order = np.where(s, (near[:, :, None] >= near[:, None]).sum(2) - (~s).sum(1)[:, None], 0)
        points, owner = np.zeros((GROUP_POINTS, o.grid**2, 3)), np.full((GROUP_POINTS, o.grid**2), -1)
        step = np.arange(o.size)
        for n, h in zip(*np.nonzero(s), strict=True):
            rows, columns = (corners[n, h, :, None] + step) % o.grid
            pixels = (rows[:, None] * o.grid + columns).ravel()[masks[h]]
            front = near[n, h] > np.append(near[n], 0.0)[owner[n, pixels]]
            points[n, pixels[front]], owner[n, pixels[front]] = colours[h, masks[h]][front], h
        visible = np.array([np.bincount(row + 1, minlength=len(masks) + 1)[1:] for row in owner]) / masks.sum(1)
        return Scenes(points.reshape(GROUP_POINTS, -1), order, corners, visible)

    def group(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if self.anywhere:
            scenes, rng = self.scenes(index), stream(self.seed, "noise", index)
            return scenes.points + self.options.sigma * rng.standard_normal(scenes.points.shape), scenes.order
        masks, colours = self.fixed_objects
        rng = stream(self.seed, "data", index)
        s = rng.random((GROUP_POINTS, len(masks))) < self.probability
        clean = show_nearest(s, 1 - rng.random(s.shape), masks, colours)
        return clean + self.options.sigma * rng.standard_normal(clean.shape), s


def files_in(folder: Path, count: int | None) -> list[Path]:
    """Return the first ``count`` PNG files of a folder by name, or all."""
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() == ".png")
    if len(files) < (count or 1):
        found = f"{len(files)} in {folder}" if folder.is_dir() else f"no folder {folder}"
        raise UserError(f"data.folder: expected {count or 'some'} PNG files, found {found}")
    return files[:count]


def read_object(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask of a picture scaled to ``size`` pixels per side, (size, size) bool, and its colours."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            picture = image.convert("RGBA").resize((size, size), Image.Resampling.BOX)
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: expected a PNG file, found {str(error) or 'something else'}") from None
    values = np.asarray(picture, np.float64) / 255
    return values[:, :, 3] >= 0.5, values[:, :, :3]


def mean_colour(path: Path, mask: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Return the mean colour of the opaque pixels of a picture, weighted by their intensity, (3,)."""
    weight = mask * colours.mean(2)
    if not weight.sum() > 0:
        raise UserError(f"{path}: expected an object with pixels that are neither transparent nor black, found none")
    return np.tensordot(weight, colours, 2) / weight.sum()


SOURCE = Objects
