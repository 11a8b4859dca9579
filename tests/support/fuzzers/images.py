"""Damaged image files."""

import struct
import zlib

import h5py
import numpy as np
import tifffile
from damage import spoil
from PIL import Image
from scipy.io import savemat

from parallel_et.preprocessing.filters import Steps
from parallel_et.preprocessing.image_collection import ImageCollection
from parallel_et.preprocessing.images import RAW_SHAPE

RNG = np.random.default_rng(1)
BYTES = RNG.integers(0, 256, (30, 40), np.uint8)
COLOURS = RNG.integers(0, 256, (30, 40, 3), np.uint8)
WORDS = RNG.integers(0, 65536, (30, 40)).astype(np.uint16)
STACK = RNG.normal(size=(5, 30, 40))


def prepare(folder):
    for name, values in (("bytes", BYTES), ("colours", COLOURS), ("words", WORDS)):
        Image.fromarray(values).save(folder / f"seed-{name}.png")
        for way in ("raw", "tiff_lzw", "tiff_deflate", "packbits"):
            Image.fromarray(values).save(folder / f"seed-{name}-{way}.tif", compression=way)
    Image.fromarray(COLOURS).convert("P").save(folder / "seed-palette.png")
    for name, values, options in (
        ("grey", BYTES, {}),
        ("colours", COLOURS, {}),
        ("late", COLOURS, {"progressive": True}),
    ):
        Image.fromarray(values).save(folder / f"seed-{name}.jpg", **options)
    Image.fromarray(COLOURS).save(folder / "seed-jpeg.tif", compression="jpeg")
    pages = [Image.fromarray(page.astype(np.float32)) for page in STACK]
    pages[0].save(folder / "seed-pages.tif", save_all=True, append_images=pages[1:])
    deep = 257 * COLOURS.astype(np.uint16)
    tifffile.imwrite(folder / "seed-deep.tif", deep, photometric="rgb")
    tifffile.imwrite(folder / "seed-deep-packed.tif", deep, photometric="rgb", compression="zlib", predictor=True)
    for number, values in enumerate((BYTES, COLOURS, STACK, np.asfortranarray(STACK))):
        np.save(folder / f"seed-{number}.npy", values)
    savemat(folder / "seed-stack.mat", {"IMAGES": STACK.transpose(1, 2, 0)})
    savemat(folder / "seed-packed.mat", {"I": BYTES, "n": 5.0, "s": {"a": "text", "b": [1, 2]}}, do_compression=True)
    savemat(folder / "seed-old.mat", {"I": BYTES}, format="4")
    with h5py.File(folder / "seed-new.mat", "w", userblock_size=512) as file:
        file["I"] = BYTES.T
    with open(folder / "seed-new.mat", "rb+") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")


def case(rng, folder):
    if rng.random() < 0.01:
        (folder / "spoilt.iml").write_bytes(bytes(2 * RAW_SHAPE[0] * RAW_SHAPE[1] + int(rng.integers(-2, 3))))
        return check(folder / "spoilt.iml")
    seed = rng.choice(sorted(folder.glob("seed-*")))
    raw = seed.read_bytes()
    if rng.random() < 0.95:
        raw = spoil(rng, raw, 2600 if seed.name == "seed-new.mat" else 400)
    if seed.suffix == ".png" and rng.random() < 0.7:
        raw = repair_checksums(raw)
    path = folder / f"spoilt{seed.suffix}"
    path.write_bytes(raw)
    return check(path)


def repair_checksums(raw):
    """Return a damaged PNG with right checksums."""
    offset = 8
    parts = [raw[:8]]
    while offset + 12 <= len(raw):
        length = min(int.from_bytes(raw[offset : offset + 4], "big"), len(raw) - offset - 12)
        chunk = raw[offset + 4 : offset + 8 + length]
        parts += [struct.pack(">I", length), chunk, struct.pack(">I", zlib.crc32(chunk))]
        offset += 12 + length
    return b"".join(parts)


def check(path):
    """Read a file and all its images."""
    collection = ImageCollection(Steps(), (8, 8))
    collection.set_entries(collection.inspect(str(path)))
    for number, entry in enumerate(collection.entries):
        image = collection.image(number)
        assert image.shape == (entry.height, entry.width)
        assert np.isfinite(image).all()
