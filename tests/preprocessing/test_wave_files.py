"""Reading of recordings of all kinds, from files that are written byte by byte."""

import struct

import numpy as np
import pytest
from scipy.io import wavfile

from parallel_et.errors import UserError
from parallel_et.preprocessing.recordings import SoundSteps, check_resampling
from parallel_et.preprocessing.wave_files import Recording, find_recordings, read_recording, write_wave

VALUES = np.array([[0.0, 0.5], [-1.0, 0.25], [-0.5, -0.25]])


def wave(path, payload, bits, channels=2, rate=8000, kind=1, extra=b""):
    """Write a wave file, chunk by chunk."""
    frame = channels * bits // 8
    layout = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits)
    body = (
        b"WAVE" + b"fmt " + struct.pack("<I", 16) + layout + extra + b"data" + struct.pack("<I", len(payload)) + payload
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_integers_of_all_sizes_become_values_from_minus_one_to_one(tmp_path, bits):
    whole = (VALUES.ravel() * 2 ** (bits - 1)).astype(int)
    stored = [
        int(w + 128).to_bytes(1, "little") if bits == 8 else int(w).to_bytes(bits // 8, "little", signed=True)
        for w in whole
    ]
    note = b"LIST" + struct.pack("<I", 4) + b"note"
    wave(tmp_path / "a.wav", b"".join(stored), bits, extra=note)
    rate, samples = read_recording(str(tmp_path / "a.wav"))
    assert rate == 8000
    np.testing.assert_array_equal(samples, VALUES)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floating_point_samples_are_not_scaled(tmp_path, kind):
    wave(tmp_path / "a.wav", (3 * VALUES).astype(kind).tobytes(), 8 * np.dtype(kind).itemsize, kind=3)
    np.testing.assert_array_equal(read_recording(str(tmp_path / "a.wav")).samples, 3 * VALUES)


def test_npy_files_need_a_rate(tmp_path):
    np.save(tmp_path / "a.npy", VALUES[:, 0])
    assert read_recording(str(tmp_path / "a.npy"), 44100).rate == 44100
    np.testing.assert_array_equal(read_recording(str(tmp_path / "a.npy"), 8000).samples, VALUES[:, :1])
    with pytest.raises(UserError, match="expected its sampling rate, --npy-rate, found none"):
        read_recording(str(tmp_path / "a.npy"))


def test_a_written_wave_file_is_read(tmp_path):
    write_wave(tmp_path / "a.wav", 16000, np.array([0.5, -1.0, 2.0]))
    rate, samples = read_recording(str(tmp_path / "a.wav"))
    assert rate == 16000
    np.testing.assert_array_equal(samples[:, 0], [0.5, -1.0, 1 - 2**-15])


def test_bad_files_are_refused_in_one_line(tmp_path):
    wave(tmp_path / "torn.wav", bytes(2000), 16)
    (tmp_path / "torn.wav").write_bytes((tmp_path / "torn.wav").read_bytes()[:-600])
    wave(tmp_path / "packed.wav", bytes(2000), 16, kind=17)
    wavfile.write(tmp_path / "empty.wav", 8000, np.empty(0, np.int16))
    (tmp_path / "text.wav").write_text("hello")
    (tmp_path / "none.wav").write_bytes(b"")
    np.save(tmp_path / "cube.npy", np.ones((2, 2, 2)))
    np.savez(tmp_path / "many.npz", VALUES)
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    (tmp_path / "song.mp3").write_bytes(bytes(100))
    for name in ("torn.wav", "packed.wav", "empty.wav", "text.wav", "none.wav", "cube.npy", "many.npy", "song.mp3"):
        with pytest.raises(UserError, match=f"{name}: expected .*, found ") as caught:
            read_recording(str(tmp_path / name), 8000)
        assert "\n" not in str(caught.value)
    names = ["cube.npy", "empty.wav", "many.npy", "none.wav", "packed.wav", "text.wav", "torn.wav"]
    assert find_recordings([str(tmp_path)]) == [f"{tmp_path}/{name}" for name in names]


def test_an_impossible_header_is_refused(tmp_path):
    wave(tmp_path / "a.wav", bytes(2000), 16)
    whole = (tmp_path / "a.wav").read_bytes()
    claims = {"no rate": (24, 0), "a second": (40, 4000), "four GB": (40, 2**32 - 1), "a frame of none": (32, 0)}
    for place, number in claims.values():
        (tmp_path / "b.wav").write_bytes(whole[:place] + struct.pack("<I", number) + whole[place + 4 :])
        with pytest.raises(UserError, match=r"b\.wav: expected .*, found ") as caught:
            read_recording(str(tmp_path / "b.wav"))
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("rate", [2**31 - 1, 999_999_937])
def test_a_rate_that_needs_too_long_a_filter_is_refused(rate):
    with pytest.raises(UserError, match=f"a.wav: expected a sampling rate .*, found {rate} Hz"):
        SoundSteps(rate=16000).apply("a.wav", Recording(rate, np.ones((10, 1))))
    with pytest.raises(UserError, match=r"a\.wav: expected a recording at 16000 Hz that fits into .* of memory, found"):
        check_resampling("a.wav", 10**9, 1, 16000)
