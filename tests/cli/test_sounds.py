"""The commands sounds and voices, compared with plain computations."""

import json
import os
import shutil
import signal
import time
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp

import h5py
import numpy as np
import pytest
from launch import launch
from mpi4py import MPI
from numpy.lib.stride_tricks import sliding_window_view
from requirements import need
from scipy.io import wavfile

from parallel_et.control.signals import signals_restored
from parallel_et.errors import UserError
from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.preprocessing.recordings import SoundSteps, Spectrogram, resample
from parallel_et.preprocessing.speech import VOICE_RATE_HZ, VOICES, record_voices
from parallel_et.preprocessing.wave_files import Recording, read_recording
from parallel_et.storage.output import Output

LENGTHS = {"a.wav": 1600, "b.wav": 2000, "c.wav": 1800}


def call(command, *args, comm=MPI.COMM_SELF):
    """Run a command in this process and return its exit code."""
    with signals_restored():
        return import_module(f"parallel_et.cli.{command}").main(Ranks(comm), list(map(str, args)))


@pytest.fixture
def made(place, tmp_path, monkeypatch, capsys):
    """Run a command; return its dataset, its attributes and its output."""

    def make(*args, table="segments"):
        monkeypatch.chdir(place)
        assert call("sounds", *args, "--output", tmp_path / "out.h5", "--fresh") == 0
        with h5py.File(tmp_path / "out.h5") as file:
            assert set(file) == {table}
            assert dict(file.attrs) == dict(file[table].attrs)
            return file[table][()], dict(file.attrs), capsys.readouterr().out

    return make


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with recordings."""
    place = tmp_path_factory.mktemp("sounds")
    record(place)
    return place


def record(place):
    """Return chirps of different loudness, with silence at both ends."""
    (place / "in").mkdir()
    rng = np.random.default_rng(3)
    for k, (name, length) in enumerate(LENGTHS.items()):
        time = np.arange(length) / 8000
        chirp = np.sin(2 * np.pi * (300 + 1500 * (k + 1) * time) * time) * rng.uniform(0.5, 1, length)
        whole = np.concatenate([np.zeros(100 + k), 0.2 * (k + 1) * chirp, np.zeros(300)])
        wavfile.write(place / "in" / name, 8000, (whole * 2**15).astype(np.int16))


def stored(place, name):
    return wavfile.read(place / "in" / name)[1] / 2**15


def test_all_overlapping_segments_of_recordings_that_fill_their_range(place, made):
    found, about, said = made("in", "--length", "12.5ms", "--trim", "40", "--scale", "5")
    expected, left = [], 0
    for name in LENGTHS:
        sound = stored(place, name)
        loud = np.flatnonzero(np.abs(sound) >= 0.01 * np.abs(sound).max())
        sound = sound[loud[0] : loud[-1] + 1]
        assert abs(len(sound) - LENGTHS[name]) < 10
        left += len(sound)
        expected += [5 / np.abs(sound).max() * sound[i : i + 100] for i in range(len(sound) - 99)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32
    assert np.abs(found).max() == 5
    assert about["sampling rate"] == 8000
    assert about["milliseconds"] == 12.5
    recordings = json.loads(about["recordings"])
    assert sum(r["samples"] for r in recordings) == left
    trimmed = np.sum([r["seconds trimmed"] for r in recordings])
    assert f"{trimmed:.3g} s of silence trimmed" in said
    assert f"{left / 8000:.4g} s are left" in said
    assert [step["step"] for step in json.loads(about["steps"])] == ["mono", "trim", "scale", "cut"]
    for r in recordings:
        assert r["factor"] == pytest.approx(5 / np.abs(stored(place, r["file"].removeprefix("in/"))).max())


def test_segments_in_steps_and_lengths_in_samples(place, made):
    for length in ("80", "80 samples", "10ms", "0.01 s"):
        found, _, _ = made("in/a.wav", "--length", length, "--step", "2ms")
        np.testing.assert_array_equal(found, sliding_window_view(stored(place, "a.wav"), 80)[::16])


def test_a_sine_is_the_same_at_another_rate(place, made):
    sine = np.sin(2 * np.pi * 440 * np.arange(11025) / 22050)
    found = resample(sine, 22050, 16000)
    assert len(found) == 8000
    np.testing.assert_allclose(found[400:-400], np.sin(2 * np.pi * 440 * np.arange(8000) / 16000)[400:-400], atol=2e-3)
    high = np.sin(2 * np.pi * 9500 * np.arange(11025) / 22050)
    assert np.abs(resample(high, 22050, 16000)[400:-400]).max() < 0.02
    same, notes = SoundSteps(rate=22050).apply("x", Recording(22050, sine[:, None]))
    np.testing.assert_array_equal(same, sine)
    assert notes == {"recorded at": 22050}
    wavfile.write(place / "sine.wav", 22050, sine)
    rows, about, said = made("sine.wav", "in/a.wav", "--rate", "8000", "--length", "100")
    assert "1 of 2 recordings resampled from 22050 to 8000 Hz" in said
    assert about["sampling rate"] == 8000
    np.testing.assert_allclose(rows[:3901, 0], resample(sine, 22050, 8000)[:3901], atol=1e-6)


def test_channels_are_averaged_or_chosen():
    both = Recording(8000, np.array([[1.0, 3.0], [2.0, -4.0]]))
    assert SoundSteps().apply("x", both)[0].tolist() == [2.0, -1.0]
    assert SoundSteps(channel=2).apply("x", both)[0].tolist() == [3.0, -4.0]


def test_spectrograms_are_plain_fourier_sums_on_a_scale_of_decibels(place, made):
    options = ("--spectrogram", "--step", "250")
    found, about, _ = made("in", *options, table="spectrograms")
    levels = []
    for name in LENGTHS:
        sound = stored(place, name).astype(np.float32).astype(float)
        for start in range(0, len(sound) - 999, 250):
            for w in range(9):
                frame = sound[start + 100 * w :][:200]
                frame = frame * (0.54 - 0.46 * np.cos(2 * np.pi * np.arange(200) / 199))
                hertz = [100 * 40 ** (b / 49) for b in range(50)]
                sums = [abs(np.sum(frame * np.exp(-2j * np.pi * f * np.arange(200) / 8000))) for f in hertz]
                levels.append(20 * np.log10(np.maximum(sums, 1e-150)))
    levels = np.reshape(levels, (-1, 9, 50)).transpose(0, 2, 1)
    expected = np.maximum(0, 10 * (levels - levels.max() + 42.8) / 42.8)
    assert found.shape == (len(expected), 50, 9)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found.max() == 10
    assert found.min() == 0
    assert json.loads(about["hertz"]) == [100, 4000]
    assert about["milliseconds"] == 125
    step = json.loads(about["steps"])[-1]
    np.testing.assert_allclose(step["from"], [levels.max() - 42.8, levels.max()])


def test_a_tone_is_loudest_in_its_band_whatever_the_options():
    to = Spectrogram(bands=20, hertz=(200.0, 3000.0), window=160, hop=40, windows=3)
    assert to.length == 240
    for band in (4, 15):
        tone = np.sin(2 * np.pi * to.centres()[band] / 8000 * np.arange(240))
        levels = to.compute_decibels(tone[None], 8000)[0]
        assert levels.shape == (20, 3)
        assert (levels.argmax(0) == band).all()


@pytest.mark.mpi
@pytest.mark.parametrize("options", [("--count", "9001"), ("--spectrogram", "--step", "3", "--rate", "11025")])
def test_segments_have_the_same_bits_on_any_number_of_ranks(options):
    folder = Ranks().from_root(lambda: Path(mkdtemp()))
    if Ranks().is_root:
        record(folder)
    steps = (folder / "in", "--trim", "30", "--scale", "1", *options, "--quiet")
    assert call("sounds", *steps, "--output", folder / "all.h5", comm=MPI.COMM_WORLD) == 0
    if Ranks().is_root:
        assert call("sounds", *steps, "--output", folder / "one.h5") == 0
        bits = []
        for name in ("all.h5", "one.h5"):
            with h5py.File(folder / name) as file:
                (table,) = file.values()
                bits.append(table[()].tobytes())
        assert bits[0] == bits[1]
        shutil.rmtree(folder)


def test_bad_files_are_fatal_or_named_once_and_skipped(place, tmp_path):
    for name in LENGTHS:
        shutil.copy(place / "in" / name, tmp_path)
    (tmp_path / "0.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:1000])
    wavfile.write(tmp_path / "quiet.wav", 8000, np.zeros(500, np.int16))
    wavfile.write(tmp_path / "short.wav", 8000, np.ones(50, np.int16))
    wavfile.write(tmp_path / "slow.wav", 4000, np.ones(500, np.int16))
    done = launch(2, "-m", "parallel_et", "sounds", ".", "--scale", "5", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("0.wav: expected 4000 bytes of sound, found 956")
    assert not list(tmp_path.glob("sounds*"))
    done = launch(2, "-m", "parallel_et", "sounds", ".", "--scale", "5", "--bad", "skip", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("skipped") == 4
    assert "skipped quiet.wav: expected sound, found silence\n" in done.stdout
    assert "skipped short.wav: expected at least 100 samples, found 50\n" in done.stdout
    assert "skipped slow.wav: expected 8000 Hz as in the first recording, found 4000 Hz; --rate" in done.stdout
    with h5py.File(tmp_path / "sounds.h5") as file:
        assert [r["file"] for r in json.loads(file.attrs["recordings"])] == list(LENGTHS)


def test_what_was_interrupted_goes_on(made, tmp_path, monkeypatch, capsys):
    options = ("in", "--count", "30000", "--length", "100", "--scale", "5")
    whole, _, _ = made(*options)
    write, sent = Output.write, []

    def slow(output, first, arrays):
        write(output, first, arrays)
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        time.sleep(0.3)  # a signal takes effect between two of the eight pieces

    with monkeypatch.context() as patch:
        patch.setattr(Output, "write", slow)
        assert call("sounds", *options, "--output", tmp_path / "torn.h5") == 75
    assert "stopped by a signal: written" in capsys.readouterr().out
    assert call("sounds", *options, "--output", tmp_path / "torn.h5") == 0
    assert "segments already exist" in capsys.readouterr().out
    with h5py.File(tmp_path / "torn.h5") as file:
        np.testing.assert_array_equal(file["segments"], whole)


@pytest.mark.parametrize(
    "options, caption",
    [((), "Fields are waveforms. The horizontal axis shows time, 12.5 ms."), (("--spectrogram",), "100 to 4000 Hz")],
)
def test_a_report_tells_sounds_from_other_curves(place, tmp_path, monkeypatch, options, caption):
    monkeypatch.chdir(tmp_path)
    assert call("sounds", place / "in", "--count", "300", "--scale", "5", *options) == 0
    (tmp_path / "job.toml").write_text(f"""
        model = {{ name = "{"nmf" if options else "linca"}", causes = 6, learn = ["W", "sigma"] }}
        data = {{ source = "sounds.h5:/{"spectrograms" if options else "segments"}" }}
        inference = {{ candidates = 4, gamma = 2 }}
        anneal = {{ iterations = 3 }}
    """)
    assert call("train", "job.toml") == 0
    assert call("report", "runs/job") == 0
    page = (tmp_path / "runs/job/report/report.html").read_text()
    assert caption in page
    assert "peak of each recording" in page


def test_ten_voices_speak(tmp_path, capsys):
    need("espeak-ng")
    assert call("voices", "--output", tmp_path / "voices") == 0
    assert "result: 10 recordings in" in capsys.readouterr().out
    spoken = [read_recording(str(tmp_path / "voices" / voice.file)) for voice in VOICES]
    assert {rate for rate, _ in spoken} == {VOICE_RATE_HZ}
    assert len({samples.tobytes() for _, samples in spoken}) == 10
    assert all(0.1 < np.abs(samples).max() < 1 for _, samples in spoken)  # loud, and not clipped
    ready = [SoundSteps(trim=40, scale=5).apply("x", recording)[0] for recording in spoken]
    points = sum(len(samples) - 199 for samples in ready)
    assert 389_510 <= points < 1.03 * 389_510  # the number of the paper, and at most 3 % more


def test_without_the_program_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="espeak-ng: expected this program, found none; apt-get install espeak-ng"):
        record_voices(tmp_path / "voices")
    assert not (tmp_path / "voices").exists()


def test_the_job_of_the_paper_is_in_order():
    job = read_job(str(Path(__file__).parent.parent.parent / "jobs/et-2010/linca-sound.toml"))
    assert job.data.source == "sounds.h5:/segments"
    assert (job.data.points, job.model.causes, job.anneal.iterations) == (389510, 200, 400)
