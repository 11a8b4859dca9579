"""Files that optional packages read: FLAC, OGG, and TIFF of 16 bits a colour. Messages without these packages."""

import sys

import h5py
import numpy as np
import pytest
from launch import call
from requirements import need_package
from scipy.io import wavfile

from parallel_et.errors import UserError
from parallel_et.preprocessing import images
from parallel_et.preprocessing.images import open_images
from parallel_et.preprocessing.wave_files import find_recordings, read_recording

RNG = np.random.default_rng(1)
TONE = np.sin(np.arange(20000) / 9)[:, None] * [9000, 4000] + RNG.normal(size=(20000, 2)) * 300
COLOURS = RNG.integers(0, 65536, (40, 50, 3)).astype(np.uint16)
ORGANISED = {
    "plain": {},
    "planes": {"planarconfig": "separate"},
    "tiles": {"tile": (16, 16)},
    "packed": {"compression": "zlib", "predictor": True},
}


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    soundfile = need_package("soundfile")
    place = tmp_path_factory.mktemp("sounds")
    samples = TONE.astype(np.int16)
    wavfile.write(place / "a.wav", 16000, samples)
    for ending in ("flac", "ogg"):
        soundfile.write(place / f"a.{ending}", samples, 16000)
    return place


def test_flac_equals_the_wave_file_and_ogg_is_close(sounds):
    wave, flac, ogg = (read_recording(str(sounds / f"a.{ending}")) for ending in ("wav", "flac", "ogg"))
    assert (flac.rate, ogg.rate, ogg.samples.shape) == (16000, 16000, (20000, 2))
    np.testing.assert_array_equal(flac.samples, wave.samples)
    assert np.corrcoef(ogg.samples[:, 0], wave.samples[:, 0])[0, 1] > 0.99
    assert [name[-4:] for name in find_recordings([str(sounds)])] == ["flac", ".ogg", ".wav"]


@pytest.mark.parametrize("ending", ["flac", "ogg"])
def test_a_recording_that_is_cut_off_or_damaged_is_refused_in_one_line(sounds, tmp_path, ending):
    raw, path = (sounds / f"a.{ending}").read_bytes(), tmp_path / f"bad.{ending}"
    middle = len(raw) // 2
    damaged = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
    for bad in (b"", raw[:50], raw[:middle], raw[:-1], damaged):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=rf"bad\.{ending}: expected .*, found ") as caught:
            read_recording(str(path))
        assert str(caught.value).isprintable()


def test_segments_of_flac_are_those_of_the_wave_file(sounds, tmp_path):
    for ending in ("wav", "flac"):
        done = call("sounds", sounds / f"a.{ending}", "--output", f"{ending}.h5", "--length", "200", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    with h5py.File(tmp_path / "wav.h5") as one, h5py.File(tmp_path / "flac.h5") as other:
        assert one["segments"][()].tobytes() == other["segments"][()].tobytes()


def test_without_soundfile_the_message_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    line = r"a\.flac: expected the package soundfile, found none .*; pip install 'parallel_et\[sounds\]'"
    with pytest.raises(UserError, match=line):
        read_recording(str(tmp_path / "a.flac"))


@pytest.mark.parametrize("how", ORGANISED)
def test_tiff_of_16_bits_a_colour_is_read_exactly(tmp_path, how):
    tifffile = need_package("tifffile")
    planes = np.moveaxis(COLOURS, 2, 0) if how == "planes" else COLOURS
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, planes, photometric="rgb", **ORGANISED[how])
    (found,) = open_images(str(path))
    np.testing.assert_array_equal(found, COLOURS)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) - 3000])
    with pytest.raises(UserError, match=r"a\.tif: expected .*, found "):
        open_images(str(path))


def test_several_pages_and_transparent_colours(tmp_path):
    tifffile = need_package("tifffile")
    clear = np.concatenate([COLOURS, COLOURS[..., :1]], 2)
    tifffile.imwrite(tmp_path / "a.tif", np.stack([clear, clear[::-1]]), photometric="rgb", extrasamples=["unassalpha"])
    first, second = open_images(str(tmp_path / "a.tif"))
    np.testing.assert_array_equal(images.to_grey(first), images.to_grey(COLOURS))
    np.testing.assert_array_equal(second, clear[::-1])


def test_without_tifffile_the_message_names_the_package(tmp_path, monkeypatch):
    need_package("tifffile").imwrite(tmp_path / "a.tif", COLOURS, photometric="rgb")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    line = (
        r"a\.tif: expected the package tifffile to read more than 8 bits a colour, found none .*parallel_et\[images\]"
    )
    with pytest.raises(UserError, match=line):
        images.read_images(str(tmp_path / "a.tif"))
