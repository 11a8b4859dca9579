"""Image files of each kind."""

import os
import struct
import zlib

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from parallel_et.errors import UserError
from parallel_et.preprocessing.image_integrity import INTERLACE_PASSES
from parallel_et.preprocessing.images import find_images, open_images, to_grey

RNG = np.random.default_rng(1)
BYTES = RNG.integers(0, 256, (30, 40), np.uint8)
WORDS = RNG.integers(0, 65536, (30, 40), np.uint16)
COLOURS = RNG.integers(0, 256, (30, 40, 3), np.uint8)
LUMA = 0.299 * COLOURS[..., 0] + 0.587 * COLOURS[..., 1] + 0.114 * COLOURS[..., 2]
STACK = RNG.normal(0, 1, (5, 30, 40))


def only(path):
    (image,) = open_images(str(path))
    return to_grey(image)


def png(path, height, width, pixels, bits=8, colours=0, interlaced=0):
    """Write a PNG file, chunk by chunk."""
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, interlaced)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(pixels), b"IEND": b""}
    parts = [struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks.items()]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def refused(path, words):
    with pytest.raises(UserError, match=words) as caught:
        open_images(str(path))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("side", [40_000, 2**31 - 1])
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_an_image_larger_than_the_memory_is_refused(tmp_path, side, ending):
    path = tmp_path / f"a.{ending}"
    png(tmp_path / "a.png", side, side, bytes(10))
    if ending == "tif":
        Image.fromarray(BYTES).save(path)
        raw = path.read_bytes()
        for tag, value in ((256, 40), (257, 30)):
            kinds = [struct.pack("<HHII", tag, kind, 1, value) for kind in (3, 4)]
            raw = raw.replace(kinds[0], struct.pack("<HHII", tag, 4, 1, side)).replace(
                kinds[1], struct.pack("<HHII", tag, 4, 1, side)
            )
        path.write_bytes(raw)
    refused(path, rf"a\.{ending}: expected ")


def test_a_png_with_missing_rows_is_refused(tmp_path):
    rows = [b"\0" + bytes([row] * 64) for row in range(64)]
    png(tmp_path / "a.png", 64, 64, b"".join(rows))
    assert only(tmp_path / "a.png")[:, 0].tolist() == list(range(64))
    png(tmp_path / "a.png", 64, 64, b"".join(rows[:10]))
    refused(tmp_path / "a.png", r"a\.png: expected 4160 bytes of pixels, found 650")


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (5, 9), (8, 8), (13, 7)])
def test_an_interlaced_png_is_read_and_refused_if_rows_are_missing(tmp_path, shape):
    height, width = shape
    values = RNG.integers(0, 256, shape, np.uint8)
    pixels = b""
    for top, left, down, right in INTERLACE_PASSES:
        pixels += b"".join(b"\0" + row.tobytes() for row in values[top::down, left::right] if row.size)
    png(tmp_path / "a.png", height, width, pixels, interlaced=1)
    np.testing.assert_array_equal(only(tmp_path / "a.png"), values)
    png(tmp_path / "a.png", height, width, pixels[:-1], interlaced=1)
    refused(tmp_path / "a.png", r"a\.png: expected ")


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}, {"quality": 100, "subsampling": 0}])
@pytest.mark.parametrize("values", [BYTES, COLOURS], ids=["grey", "colours"])
def test_a_jpeg_whose_data_end_too_early_is_refused(tmp_path, values, options):
    path = tmp_path / "a.jpg"
    Image.fromarray(values).save(path, **options)
    raw = path.read_bytes()
    assert len(open_images(str(path))) == 1
    path.write_bytes(raw[: -len(raw) // 10] + b"\xff\xd9")
    refused(path, r"a\.jpg: expected the data of a complete picture, found data that end too early")
    path.write_bytes(raw[: -len(raw) // 10])
    refused(path, r"a\.jpg: expected an image, found what cannot be read")


def test_a_matlab_file_that_crashes_scipy_is_refused_and_the_next_one_is_read(tmp_path):
    savemat(tmp_path / "a.mat", {"IMAGES": STACK.transpose(1, 2, 0)})
    whole = (tmp_path / "a.mat").read_bytes()
    for byte in (181, 192):
        (tmp_path / "b.mat").write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
        refused(tmp_path / "b.mat", r"b\.mat: expected ")
    assert len(open_images(str(tmp_path / "a.mat"))) == 5


def test_sixteen_bits_a_colour_are_refused_and_not_cut_to_eight(tmp_path):
    png(tmp_path / "deep.png", 1, 2, b"\0" + bytes(12), bits=16, colours=2)
    with pytest.raises(UserError, match=r"deep.png: expected 8 bits a colour or 16 bits of grey, found 16 bits a col"):
        open_images(str(tmp_path / "deep.png"))


@pytest.mark.parametrize("ending", ["png", "tif", "TIFF"])
@pytest.mark.parametrize("values", [BYTES, WORDS, COLOURS], ids=["bytes", "words", "colours"])
def test_pictures_without_loss_are_read_exactly(tmp_path, ending, values):
    Image.fromarray(values).save(tmp_path / f"a.{ending}")
    np.testing.assert_allclose(only(tmp_path / f"a.{ending}"), LUMA if values is COLOURS else values, rtol=1e-14)


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "1"])
def test_pictures_of_other_modes_become_grey(tmp_path, mode):
    picture = Image.fromarray(COLOURS).convert(mode)
    picture.save(tmp_path / "a.png")
    expected = np.asarray(picture.convert("RGB"), float) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(only(tmp_path / "a.png"), expected, rtol=1e-14)


def test_a_jpeg_is_read_approximately(tmp_path):
    smooth = np.add.outer(np.arange(64), np.arange(64)).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.jpg", quality=95)
    assert np.abs(only(tmp_path / "a.jpg") - smooth).max() < 5


def test_frames_of_a_photograph_are_previews_and_not_images(tmp_path):
    photo, preview = (Image.fromarray(np.full(shape, 7, np.uint8)) for shape in ((200, 300), (40, 60)))
    photo.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[preview])
    photo.save(tmp_path / "b.png", save_all=True, append_images=[Image.fromarray(np.full((200, 300), 9, np.uint8))])
    for name in ("a.jpg", "b.png"):
        assert [image.shape for image in open_images(str(tmp_path / name))] == [(200, 300)]


def test_a_matlab_stack_of_four_images_has_no_colours(tmp_path):
    savemat(tmp_path / "a.mat", {"IMAGES": np.zeros((20, 30, 4))})
    savemat(tmp_path / "b.mat", {"photo": np.zeros((20, 30, 3), np.uint8)})
    assert [len(open_images(str(tmp_path / name))) for name in ("a.mat", "b.mat")] == [4, 1]


def test_a_name_that_cannot_be_stored_is_refused(tmp_path):
    name = os.fsencode(tmp_path) + b"/f\xfcr.png"
    with open(name, "wb"):
        pass
    with pytest.raises(UserError, match=r"f\\udcfcr\.png': expected a name in UTF-8"):
        find_images([str(tmp_path)])


def test_a_float_tiff_and_one_of_several_pages(tmp_path):
    pages = [Image.fromarray(page.astype(np.float32)) for page in STACK]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal([to_grey(page) for page in open_images(str(tmp_path / "a.tif"))], STACK.astype("f4"))


def test_npy_files_have_one_image_colours_or_a_stack(tmp_path):
    columns_first = np.asfortranarray(STACK)
    for values, expected in ((WORDS, [WORDS]), (COLOURS, [LUMA]), (STACK, STACK), (columns_first, STACK)):
        np.save(tmp_path / "a.npy", values)
        np.testing.assert_allclose([to_grey(i) for i in open_images(str(tmp_path / "a.npy"))], expected, rtol=1e-14)


def test_a_stack_that_becomes_shorter_is_reported_in_one_line(tmp_path):
    np.save(tmp_path / "a.npy", STACK)
    images = open_images(str(tmp_path / "a.npy"))
    os.truncate(tmp_path / "a.npy", 200)
    with pytest.raises(UserError, match=r"a\.npy: expected \d+ bytes more, found the end of the file"):
        images[len(images) - 1]


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_matlab_files_old_and_new(tmp_path, version):
    def save(**variables):
        if version == "5":
            savemat(tmp_path / "a.mat", variables)
            return
        with h5py.File(tmp_path / "a.mat", "w", userblock_size=512) as file:
            for name, values in variables.items():
                file[name] = np.transpose(values)
        with open(tmp_path / "a.mat", "rb+") as raw:
            raw.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")

    save(IMAGES=STACK.transpose(1, 2, 0), count=np.array([[5.0]]))
    np.testing.assert_array_equal([to_grey(i) for i in open_images(str(tmp_path / "a.mat"))], STACK)
    save(one=WORDS, two=BYTES)
    with pytest.raises(UserError, match=r"a\.mat: expected one variable, or file\.mat:NAME, found one, two"):
        open_images(str(tmp_path / "a.mat"))
    name = f"{tmp_path}/a.mat:two"
    assert find_images([name]) == [name]
    np.testing.assert_array_equal(only(name), BYTES)


@pytest.mark.parametrize("ending", ["iml", "imc"])
def test_raw_images_of_van_hateren(tmp_path, ending):
    values = RNG.integers(0, 6000, (1024, 1536)).astype(">u2")
    (tmp_path / f"imk00001.{ending}").write_bytes(values.tobytes())
    np.testing.assert_array_equal(only(tmp_path / f"imk00001.{ending}"), values)
    (tmp_path / f"short.{ending}").write_bytes(values.tobytes()[:-2])
    with pytest.raises(UserError, match="expected 3145728 bytes of 1024 x 1536, found 3145726"):
        open_images(str(tmp_path / f"short.{ending}"))


@pytest.mark.parametrize("name", ["cut.png", "cut.jpg", "cut.tif", "cut.npy", "cut.mat", "empty.png", "a.txt", "o.npy"])
def test_a_damaged_file_is_named_in_one_line(tmp_path, name):
    whole = tmp_path / f"whole{name[name.index('.') :]}"
    if name.startswith("cut"):
        if name.endswith("npy"):
            np.save(whole, STACK)
        elif name.endswith("mat"):
            savemat(whole, {"a": STACK})
        else:
            Image.fromarray(COLOURS).resize((300, 300)).save(whole)
        (tmp_path / name).write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    elif name == "o.npy":
        np.save(tmp_path / name, np.array([{}, []], object), allow_pickle=True)
    else:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"{name}: expected ") as caught:
        open_images(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_files_folders_and_patterns_each_file_once_by_name(tmp_path):
    for name in ("b.png", "a.JPG", "c.txt", ".hidden.png", "d.npy"):
        (tmp_path / name).touch()
    folder = str(tmp_path)
    assert find_images([folder]) == [f"{folder}/{name}" for name in ("a.JPG", "b.png", "d.npy")]
    assert find_images([f"{folder}/d.npy", f"{folder}/*.[np]*"]) == [f"{folder}/d.npy", f"{folder}/b.png"]
    for nothing in (f"{folder}/x.png", f"{folder}/*.tif"):
        with pytest.raises(UserError, match="expected a file, a folder or a pattern of files, found nothing there"):
            find_images([nothing])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"expected images .* found none in this folder"):
        find_images([f"{folder}/empty"])
