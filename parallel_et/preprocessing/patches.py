"""From images to a file of patches, written by all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.album import Album, Places
from parallel_et.preprocessing.cutting import SINGLE, command_of, cut, refuse_bad, survey
from parallel_et.preprocessing.filters import Noise, Steps
from parallel_et.preprocessing.images import find_images
from parallel_et.storage.row_pass import Sweep


@dataclass(frozen=True)
class Patches:
    """Patches to be cut; the options are those of the command, in its order, and refused if they make no sense.

    Parameters
    ----------
    inputs : files, folders or patterns of images
    output : the file
    size : side of a patch
    count : patches at random places, or ``all`` of them, ``stride`` apart
    colour : whether pixels are red, green and blue, else their luminance
    noise : standard deviation of what is added to the images
    bad : whether a bad image is ``fatal``, or named and skipped: ``skip``
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
            ("contrast", self.contrast is None or 0 < self.contrast <= SINGLE, "a positive number"),
            ("scale", -SINGLE <= low < high <= SINGLE, "a number and a larger one"),
        )
        refuse_bad(self, checks)

    def steps(self, files: Sequence[str]) -> Steps:
        """What is done to the images of files and to patches."""
        noise = None if self.noise is None else Noise(self.noise, self.seed, files)
        dog, scale = ((pair[0], pair[1]) if pair else None for pair in (self.dog, self.scale))
        whole, patches = (noise, self.clamp, dog, self.whiten), (self.mean_free, self.zca, self.contrast, self.on_off)
        return Steps(*whole, *patches, scale)

    def cut(self, ranks: Ranks) -> int:
        """Look at the images, then cut, prepare and write the patches; collective. Returns the exit code."""
        sweep = Sweep(ranks, self.output, self.fresh, self.quiet, self.max_time)

        def work() -> str:
            files = ranks.from_root(lambda: find_images(self.inputs))
            ranks.from_root(sweep.refuse_taken)
            album = Album(self.steps(files), (self.size, self.size), sweep.between, self.colour)
            survey(sweep, album, files, self.bad == "skip", self.inputs)
            places = Places(album, self.count, self.stride or 1, self.seed)
            return cut(sweep, album, places, command_of("patches", self), f"of {self.size} x {self.size}")

        return sweep.run(work)
