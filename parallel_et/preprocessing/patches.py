"""Options of ``patches``, which cuts a file of patches from images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.cutting import FLOAT32_MAX, check_options, format_command, inspect_files, write_patches
from parallel_et.preprocessing.filters import Noise, Steps
from parallel_et.preprocessing.image_collection import ImageCollection, PatchPlaces
from parallel_et.preprocessing.images import find_images
from parallel_et.storage.row_pass import RowPass


@dataclass(frozen=True)
class Patches:
    """Options of the command ``patches``, in its order. Invalid values raise UserError.

    Parameters
    ----------
    inputs : files, folders or patterns of images
    output : the file of patches
    size : side of a patch in pixels
    count, all : number of patches at random positions, or patches at all positions
    stride : pixels from one position to the next, with ``all``
    seed : seed of positions and noise
    bad : ``fatal``: a bad image is an error; ``skip``: it is reported and skipped
    colour : pixels are red, green and blue; else luminances
    noise : standard deviation of noise that is added to the images
    clamp : percentage of the brightest pixels that are clipped
    dog : standard deviations of a difference of Gaussians, in pixels
    whiten : multiply the spectrum by f exp(-(f/f0)^4)
    mean_free : subtract the mean of each patch
    zca : whiten patches by their covariance, with this constant added to the variances
    contrast : largest magnitude of each patch after scaling
    on_off : positive and negative part in two channels
    scale : range to which all patches are scaled together
    fresh : replace an existing output
    max_time : seconds after which the command stops, to be resumed
    """

    inputs: Sequence[str]
    output: str = "patches.h5"
    size: int = 26
    count: int | None = None
    all: bool = False
    stride: int | None = None
    seed: int = 1
    bad: str = "fatal"
    colour: bool = False
    noise: float | None = None
    clamp: float | None = None
    dog: Sequence[float] | None = None
    whiten: bool = False
    mean_free: bool = False
    zca: float | None = None
    contrast: float | None = None
    on_off: bool = False
    scale: Sequence[float] | None = None
    fresh: bool = False
    quiet: bool = False
    max_time: float | None = None

    def __post_init__(self) -> None:
        low, high = self.scale or (0, 1)
        narrow, wide = self.dog or (1, 2)
        different = 0 < narrow < 1e4 and 0 < wide < 1e4 and narrow != wide
        checks = (
            ("size", self.size > 0, "a positive number"),
            ("count", self.count is None or 0 < self.count < 2**48, "a positive number"),
            ("stride", self.stride is None or (self.stride > 0 and self.all), "a positive number, with --all"),
            ("seed", 0 <= self.seed < 2**63, "a number from 0 to 2^63 - 1"),
            ("noise", self.noise is None or 0 < self.noise <= 1e50, "a positive number"),
            ("clamp", self.clamp is None or 0 < self.clamp < 100, "a percentage between 0 and 100"),
            ("dog", different, "two different positive numbers below 10000"),
            ("on_off", not (self.on_off and self.colour), "none with --colour"),
            ("zca", self.zca is None or 0 < self.zca < np.inf, "a positive number"),
            ("contrast", self.contrast is None or 0 < self.contrast <= FLOAT32_MAX, "a positive number"),
            ("scale", -FLOAT32_MAX <= low < high <= FLOAT32_MAX, "a number and a larger one"),
        )
        check_options(self, checks)

    def steps(self, files: Sequence[str]) -> Steps:
        """Return the steps on the images of these files and on patches."""
        noise = None if self.noise is None else Noise(self.noise, self.seed, files)
        dog, scale = ((pair[0], pair[1]) if pair else None for pair in (self.dog, self.scale))
        whole, patches = (noise, self.clamp, dog, self.whiten), (self.mean_free, self.zca, self.contrast, self.on_off)
        return Steps(*whole, *patches, scale)

    def cut(self, ranks: Ranks) -> int:
        """Inspect the images, then cut, prepare and write the patches; collective. Return the exit code."""
        row_pass = RowPass(ranks, self.output, self.fresh, self.quiet, self.max_time)

        def work() -> str:
            files = ranks.from_root(lambda: find_images(self.inputs))
            ranks.from_root(row_pass.refuse_existing)
            collection = ImageCollection(
                self.steps(files), (self.size, self.size), row_pass.give_up_if_stopping, self.colour
            )
            inspect_files(row_pass, collection, files, self.bad == "skip", self.inputs)
            places = PatchPlaces(collection, self.count, self.stride or 1, self.seed)
            return write_patches(
                row_pass, collection, places, format_command("patches", self), f"of {self.size} x {self.size}"
            )

        return row_pass.run(work)
