"""Image files of many kinds as arrays of grey values."""

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from parallel_et.errors import UserError
from parallel_et.preprocessing.find_files import ending, find_files
from parallel_et.preprocessing.image_integrity import check_jpeg, check_png
from parallel_et.storage.error_translation import check_room, gate
from parallel_et.storage.matlab import read_variable
from parallel_et.storage.raw_reader import open_npy, place_of, read_plain
from parallel_et.storage.subprocess_reader import Apart

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
APART = (".tif", ".tiff", ".mat")
"""Kinds of files that crash the libraries which read them, if they are damaged in certain ways."""
RAW = (".iml", ".imc")
ENDINGS = (*PICTURES, ".npy", ".mat", *RAW)
RAW_SHAPE = (1024, 1536)
"""Of van Hateren's images: big-endian integers of 16 bits, row by row."""
LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""
PLAIN = ("L", "I", "F", "I;16", "I;16B", "I;16L", "RGB")
"""Modes of Pillow whose numbers are the grey values or red, green and blue."""
PIXEL = 12
"""Bytes of memory for a value of a picture, all in all: as it is stored, and in double precision."""
BITS = 258
"""Tag of TIFF: bits of each colour of a pixel."""
Image.MAX_IMAGE_PIXELS = None  # large images are wanted here


class Stack(Sequence[np.ndarray]):
    """Images of the shape (images, height, width) from a byte of a file on, each read when it is asked for."""

    def __init__(self, path: str, place: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._path, self._place, self._shape, self._dtype = path, place, shape, dtype

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self):
            raise IndexError(number)
        pixels = self._shape[1] * self._shape[2]
        image = np.empty((1, pixels), self._dtype)
        read_plain(self._path, self._place + number * image.nbytes, self._dtype, image, pixels)
        return image.reshape(self._shape[1:])


def find_images(names: Sequence[str]) -> list[str]:
    """The files that are meant by files, folders (their images by name), patterns and file.mat:VARIABLE; each once."""
    return find_files(names, ENDINGS, "images", lambda name: bool(_split(name)[1]))


def open_images(name: str) -> Sequence[np.ndarray]:
    """The images of a file as they are stored, each (height, width) or (height, width, 3 or 4).

    Files of arrays may hold a stack: .npy (images, height, width), .mat (height, width, images); TIFF several pages.
    A last axis of 3 is always taken for colours, in .npy also one of 4.
    """
    path, variable = _split(name)
    with gate(name, "an image"):
        apart = ending(path) in APART
        images = _reader().ask(path, __name__, "read_images", variable) if apart else read_images(path)
        samples = images if isinstance(images, list) else [images[0]]  # those of a stack differ in their numbers alone
    for image in samples:
        if image.ndim not in (2, 3) or image.dtype.kind not in "fiub" or not image.size:
            raise UserError(f"{name}: expected images of numbers, found the shape {image.shape} of {image.dtype}")
    return images


def grey(image: np.ndarray) -> np.ndarray:
    """An image as grey values, (height, width) float64; of colours their luminance, without the alpha channel."""
    if image.ndim == 2:
        return np.asarray(image, np.float64)
    return np.asarray(image[..., :3], np.float64) @ np.array(LUMINANCE)


def coloured(image: np.ndarray) -> np.ndarray:
    """An image as red, green and blue, (height, width, 3) float64; grey values are all three."""
    colours = np.repeat(image[..., None], 3, 2) if image.ndim == 2 else image[..., :3]
    return np.asarray(colours, np.float64)


def _split(name: str) -> tuple[str, str]:
    """A file, and the variable of ``file.mat:variable``."""
    path, colon, variable = name.rpartition(":")
    return (path, variable) if colon and ending(path) == ".mat" else (name, "")


@cache
def _reader() -> Apart:
    """The process that reads what may crash it; it goes with this one."""
    return Apart()


def read_images(path: str, variable: str = "") -> Sequence[np.ndarray]:
    """The images of a file, in this process."""
    with gate(f"{path}:{variable}" if variable else path, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is only odd
        return _open(path, variable)


def _open(path: str, variable: str) -> Sequence[np.ndarray]:
    kind = ending(path)
    if kind in PICTURES:
        return _pages(path)
    if kind == ".npy":
        table = open_npy(path)
        place = place_of(table, path)
        if table.ndim == 3 and table.shape[-1] not in (3, 4) and place is not None:
            return Stack(path, place, table.shape, table.dtype)
        check_room(path, "an image", 2 * table.nbytes)
        array = np.array(table)
        return list(array) if table.ndim == 3 and table.shape[-1] not in (3, 4) else [array]
    if kind == ".mat":
        table = read_variable(path, variable)
        return list(table.transpose(2, 0, 1)) if table.ndim == 3 and table.shape[-1] != 3 else [table]
    if kind in RAW:
        expected, found = 2 * RAW_SHAPE[0] * RAW_SHAPE[1], Path(path).stat().st_size
        if found != expected:
            raise UserError(f"{path}: expected {expected} bytes of {RAW_SHAPE[0]} x {RAW_SHAPE[1]}, found {found}")
        return [np.fromfile(path, ">u2").reshape(RAW_SHAPE)]
    raise UserError(f"{path}: expected an image ({' '.join(ENDINGS)}), found {kind or 'no such ending'}")


def _pages(path: str) -> list[np.ndarray]:
    pages, taken = [], 0
    with Image.open(path, formats=["PNG", "JPEG", "TIFF"]) as image:
        frames = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1  # not the previews of photographs
        for page in range(frames):
            image.seek(page)
            bits = getattr(image, "tag_v2", {}).get(BITS, (1,)) if image.format == "TIFF" else (1,)
            if len(bits) > 1 and max(bits) > 8:
                return _deep_pages(path)
            if image.mode[0] not in "IF" and any(";16" in str(tile[3]) for tile in image.tile):  # Pillow drops 8
                raise UserError(f"{path}: expected 8 bits a colour or 16 bits of grey, found 16 bits a colour")
            taken += image.width * image.height * len(image.getbands())
            check_room(path, f"an image of {image.height} x {image.width} pixels", PIXEL * taken)
            if image.format == "PNG":
                check_png(path)
            pages.append(np.asarray(image if image.mode in PLAIN else image.convert("RGB")))
            if image.format in ("JPEG", "MPO"):
                check_jpeg(path, image)
    return pages


def _deep_pages(path: str) -> list[np.ndarray]:
    """The pages of a TIFF file with more than 8 bits a colour, of which Pillow would drop the lower ones."""
    try:
        import tifffile
    except ImportError as error:
        wanted = "expected the package tifffile to read more than 8 bits a colour"
        raise UserError(f"{path}: {wanted}, found none ({error}); pip install 'parallel_et[images]'") from None
    pages, taken = [], 0
    with tifffile.TiffFile(path) as file:
        every: Any = file.pages
        for page in every:
            taken += page.size
            check_room(path, f"an image of {' x '.join(map(str, page.shape))}", PIXEL * taken)
            if page.axes not in ("YX", "YXS", "SYX") or ("S" in page.axes and page.samplesperpixel not in (3, 4)):
                raise UserError(f"{path}: expected grey values or colours, found axes {page.axes} of {page.shape}")
            pieces = list(zip(page.dataoffsets, page.databytecounts, strict=True))
            if bad := [start for start, size in pieces if not size or start + size > file.filehandle.size]:
                raise UserError(f"{path}: expected {len(pieces)} pieces of an image, found {len(bad)} of them missing")
            array = page.asarray()
            pages.append(np.moveaxis(array, 0, 2) if page.axes == "SYX" else array)
    return pages
