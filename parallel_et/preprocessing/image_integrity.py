"""Whether a picture file holds all of its picture: Pillow gives zeros or grey for rows that are missing.

Of files that end too early Pillow tells. It does not where the compressed data themselves come to an end before the
picture does, as in files of a program that was interrupted, or of which a piece is lost.
"""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from parallel_et.errors import UserError

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Numbers of a pixel, by the colour type of PNG."""
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Of interlaced pictures: the first row and column, and the steps to the next."""
STEP = 1 << 20
NOISE = np.random.default_rng(1).integers(0, 255, 1 << 12, np.uint8).tobytes()
"""Bytes that could be compressed data of a JPEG, but no marker."""


def check_png(path: str) -> None:
    """Refuse a PNG of which rows are missing."""
    expected, found = 0, 0
    unpack = zlib.decompressobj()
    for kind, data in _chunks(Path(path).read_bytes()):
        if kind == b"IHDR":
            width, height, bits, colours, _, _, interlaced = struct.unpack(">IIBBBBB", data[:13])
            pixel = bits * CHANNELS[colours]
            passes = PASSES if interlaced else ((0, 0, 1, 1),)
            sizes = [(-(-(height - top) // down), -(-(width - left) // right)) for top, left, down, right in passes]
            expected = sum(rows * (1 + -(-columns * pixel // 8)) for rows, columns in sizes if rows > 0 and columns > 0)
        if kind == b"IDAT":
            found += len(unpack.decompress(data, STEP))
            while unpack.unconsumed_tail and found < expected:
                found += len(unpack.decompress(unpack.unconsumed_tail, STEP))
    if found < expected:
        raise UserError(f"{path}: expected {expected} bytes of pixels, found {found}")


def _chunks(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place + 8 <= len(raw):
        length, kind = struct.unpack(">I4s", raw[place : place + 8])
        yield kind, raw[place + 8 : place + 8 + length]
        place += 12 + length


def check_jpeg(path: str, image: Image.Image) -> None:
    """Refuse a JPEG whose data end before the picture: then the decoder would use whatever came next."""
    raw = Path(path).read_bytes()
    end = _end_of_jpeg(raw)
    with Image.open(BytesIO(raw[:end] + NOISE + raw[end:]), formats=["JPEG"]) as other:
        if np.asarray(other).tobytes() != np.asarray(image).tobytes():
            raise UserError(f"{path}: expected the data of a whole picture, found that they end too early")


def _end_of_jpeg(raw: bytes) -> int:
    """Where the marker of the end of the first picture is."""
    place = 2
    while (place := raw.find(b"\xff", place)) >= 0 and place + 1 < len(raw):
        kind = raw[place + 1]
        if kind == 0xD9:
            return place
        if kind == 0xFF:  # may fill the space before a marker
            place += 1
        elif kind in (0x00, 0x01) or 0xD0 <= kind <= 0xD8:
            place += 2
        else:
            place += 2 + int.from_bytes(raw[place + 2 : place + 4], "big")
    return len(raw)
