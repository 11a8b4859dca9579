"""Check that a picture file contains all rows of its picture.

Pillow refuses files that end too early. If the compressed data end before the picture, Pillow fills the missing rows
with zeros or grey without a warning. Such files are left by interrupted programs and by lost blocks.
"""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from parallel_et.errors import UserError

PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Values of a pixel, by the colour type of PNG."""
INTERLACE_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Passes of interlaced pictures: first row and column, and the steps to the next row and column."""
CHUNK_BYTES = 1 << 20
"""Bytes that are decompressed at once."""
FILLER = np.random.default_rng(1).integers(0, 255, 1 << 12, np.uint8).tobytes()
"""Random bytes that are valid compressed data of a JPEG and contain no marker."""


def check_png(path: str) -> None:
    """Refuse a PNG with missing rows."""
    expected, found = 0, 0
    unpack = zlib.decompressobj()
    for kind, data in _iterate_chunks(Path(path).read_bytes()):
        if kind == b"IHDR":
            width, height, bits, colours, _, _, interlaced = struct.unpack(">IIBBBBB", data[:13])
            pixel = bits * PNG_CHANNELS[colours]
            passes = INTERLACE_PASSES if interlaced else ((0, 0, 1, 1),)
            sizes = [(-(-(height - top) // down), -(-(width - left) // right)) for top, left, down, right in passes]
            expected = sum(rows * (1 + -(-columns * pixel // 8)) for rows, columns in sizes if rows > 0 and columns > 0)
        if kind == b"IDAT":
            found += len(unpack.decompress(data, CHUNK_BYTES))
            while unpack.unconsumed_tail and found < expected:
                found += len(unpack.decompress(unpack.unconsumed_tail, CHUNK_BYTES))
    if found < expected:
        raise UserError(f"{path}: expected {expected} bytes of pixels, found {found}")


def _iterate_chunks(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place + 8 <= len(raw):
        length, kind = struct.unpack(">I4s", raw[place : place + 8])
        yield kind, raw[place + 8 : place + 8 + length]
        place += 12 + length


def check_jpeg(path: str, image: Image.Image) -> None:
    """Refuse a JPEG whose data end before the picture: random bytes inserted there change the decoded picture."""
    raw = Path(path).read_bytes()
    end = _find_end_of_jpeg(raw)
    with Image.open(BytesIO(raw[:end] + FILLER + raw[end:]), formats=["JPEG"]) as other:
        if np.asarray(other).tobytes() != np.asarray(image).tobytes():
            raise UserError(f"{path}: expected the data of a complete picture, found data that end too early")


def _find_end_of_jpeg(raw: bytes) -> int:
    """Return the position of the marker that ends the first picture."""
    place = 2
    while (place := raw.find(b"\xff", place)) >= 0 and place + 1 < len(raw):
        kind = raw[place + 1]
        if kind == 0xD9:
            return place
        if kind == 0xFF:  # padding before a marker
            place += 1
        elif kind in (0x00, 0x01) or 0xD0 <= kind <= 0xD8:
            place += 2
        else:
            place += 2 + int.from_bytes(raw[place + 2 : place + 4], "big")
    return len(raw)
