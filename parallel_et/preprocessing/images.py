"""Reading of image files of many kinds as arrays."""

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from parallel_et.errors import UserError
from parallel_et.preprocessing.find_files import file_suffix, find_files
from parallel_et.preprocessing.image_integrity import check_jpeg, check_png
from parallel_et.storage.error_translation import check_fits_memory, translate_errors
from parallel_et.storage.matlab import read_variable
from parallel_et.storage.raw_reader import byte_offset, open_npy, read_raw
from parallel_et.storage.subprocess_reader import SubprocessReader

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
SUBPROCESS_SUFFIXES = (".tif", ".tiff", ".mat")
"""Files that are read in a subprocess, because damaged files can crash the libraries that read them."""
RAW_SUFFIXES = (".iml", ".imc")
IMAGE_SUFFIXES = (*PICTURE_SUFFIXES, ".npy", ".mat", *RAW_SUFFIXES)
RAW_SHAPE = (1024, 1536)
"""Rows and columns of van Hateren's images, big-endian integers of 16 bits."""
LUMINANCE_WEIGHTS = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""
DIRECT_MODES = ("L", "I", "F", "I;16", "I;16B", "I;16L", "RGB")
"""Modes of Pillow whose values are grey values, or red, green and blue."""
PIXEL_BYTES = 12
"""Bytes of memory for a value of a picture, as stored and in double precision."""
BITS_TAG = 258
"""Tag of TIFF with the bits of each colour of a pixel."""
Image.MAX_IMAGE_PIXELS = None  # Pillow refuses large images by default


class ImageStack(Sequence[np.ndarray]):
    """Images (images, height, width) in a file, each read when it is accessed.

    Parameters
    ----------
    place : position of the first image in the file, in bytes
    """

    def __init__(self, path: str, place: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._path, self._place, self._shape, self._dtype = path, place, shape, dtype

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self):
            raise IndexError(number)
        pixels = self._shape[1] * self._shape[2]
        image = np.empty((1, pixels), self._dtype)
        read_raw(self._path, self._place + number * image.nbytes, self._dtype, image, pixels)
        return image.reshape(self._shape[1:])


def find_images(names: Sequence[str]) -> list[str]:
    """Return the image files that files, folders, patterns and ``file.mat:VARIABLE`` name, each once."""
    return find_files(names, IMAGE_SUFFIXES, "images", lambda name: bool(_split(name)[1]))


def open_images(name: str) -> Sequence[np.ndarray]:
    """Open the images of a file as stored, each (height, width) or (height, width, 3 or 4).

    A file may have several images: .npy (images, height, width), .mat (height, width, images), TIFF several pages.
    A last axis of length 3 is always colour, in .npy also one of length 4.
    """
    path, variable = _split(name)
    with translate_errors(name, "an image"):
        apart = file_suffix(path) in SUBPROCESS_SUFFIXES
        images = _reader().call(path, __name__, "read_images", variable) if apart else read_images(path)
        samples = images if isinstance(images, list) else [images[0]]  # all images of a stack have one shape
    for image in samples:
        if image.ndim not in (2, 3) or image.dtype.kind not in "fiub" or not image.size:
            raise UserError(f"{name}: expected images of numbers, found the shape {image.shape} of {image.dtype}")
    return images


def to_grey(image: np.ndarray) -> np.ndarray:
    """Return the grey values of an image, (height, width) float64. Colours become luminances, without alpha."""
    if image.ndim == 2:
        return np.asarray(image, np.float64)
    return np.asarray(image[..., :3], np.float64) @ np.array(LUMINANCE_WEIGHTS)


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Return red, green and blue of an image, (height, width, 3) float64. A grey value is repeated three times."""
    colours = np.repeat(image[..., None], 3, 2) if image.ndim == 2 else image[..., :3]
    return np.asarray(colours, np.float64)


def _split(name: str) -> tuple[str, str]:
    """Split ``file.mat:variable`` into file and variable. The variable is empty for other files."""
    path, colon, variable = name.rpartition(":")
    return (path, variable) if colon and file_suffix(path) == ".mat" else (name, "")


@cache
def _reader() -> SubprocessReader:
    """Start the subprocess that reads files. The subprocess ends with this process."""
    return SubprocessReader()


def read_images(path: str, variable: str = "") -> Sequence[np.ndarray]:
    """Read the images of a file in this process."""
    with translate_errors(f"{path}:{variable}" if variable else path, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # harmless oddities of the file
        return _open(path, variable)


def _open(path: str, variable: str) -> Sequence[np.ndarray]:
    kind = file_suffix(path)
    if kind in PICTURE_SUFFIXES:
        return _read_pages(path)
    if kind == ".npy":
        table = open_npy(path)
        place = byte_offset(table, path)
        if table.ndim == 3 and table.shape[-1] not in (3, 4) and place is not None:
            return ImageStack(path, place, table.shape, table.dtype)
        check_fits_memory(path, "an image", 2 * table.nbytes)
        array = np.array(table)
        return list(array) if table.ndim == 3 and table.shape[-1] not in (3, 4) else [array]
    if kind == ".mat":
        table = read_variable(path, variable)
        return list(table.transpose(2, 0, 1)) if table.ndim == 3 and table.shape[-1] != 3 else [table]
    if kind in RAW_SUFFIXES:
        expected, found = 2 * RAW_SHAPE[0] * RAW_SHAPE[1], Path(path).stat().st_size
        if found != expected:
            raise UserError(f"{path}: expected {expected} bytes of {RAW_SHAPE[0]} x {RAW_SHAPE[1]}, found {found}")
        return [np.fromfile(path, ">u2").reshape(RAW_SHAPE)]
    raise UserError(f"{path}: expected an image ({' '.join(IMAGE_SUFFIXES)}), found {kind or 'no file name suffix'}")


def _read_pages(path: str) -> list[np.ndarray]:
    pages, taken = [], 0
    with Image.open(path, formats=["PNG", "JPEG", "TIFF"]) as image:
        frames = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1  # other formats have previews
        for page in range(frames):
            image.seek(page)
            bits = getattr(image, "tag_v2", {}).get(BITS_TAG, (1,)) if image.format == "TIFF" else (1,)
            if len(bits) > 1 and max(bits) > 8:
                return _read_deep_pages(path)
            if image.mode[0] not in "IF" and any(";16" in str(tile[3]) for tile in image.tile):  # Pillow drops 8
                raise UserError(f"{path}: expected 8 bits a colour or 16 bits of grey, found 16 bits a colour")
            taken += image.width * image.height * len(image.getbands())
            check_fits_memory(path, f"an image of {image.height} x {image.width} pixels", PIXEL_BYTES * taken)
            if image.format == "PNG":
                check_png(path)
            pages.append(np.asarray(image if image.mode in DIRECT_MODES else image.convert("RGB")))
            if image.format in ("JPEG", "MPO"):
                check_jpeg(path, image)
    return pages


def _read_deep_pages(path: str) -> list[np.ndarray]:
    """Read the pages of a TIFF file with more than 8 bits a colour. Pillow would drop the lower bits."""
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
            check_fits_memory(path, f"an image of {' x '.join(map(str, page.shape))}", PIXEL_BYTES * taken)
            if page.axes not in ("YX", "YXS", "SYX") or ("S" in page.axes and page.samplesperpixel not in (3, 4)):
                raise UserError(f"{path}: expected grey values or colours, found axes {page.axes} of {page.shape}")
            pieces = list(zip(page.dataoffsets, page.databytecounts, strict=True))
            if bad := [start for start, size in pieces if not size or start + size > file.filehandle.size]:
                raise UserError(f"{path}: expected {len(pieces)} pieces of an image, found {len(bad)} of them missing")
            array = page.asarray()
            pages.append(np.moveaxis(array, 0, 2) if page.axes == "SYX" else array)
    return pages
