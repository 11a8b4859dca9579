"""The sounds and voices commands as their users see them, against plain computations."""

import json
import shutil

import h5py
import numpy as np
import pytest
from launch import launch, train
from numpy.lib.stride_tricks import sliding_window_view
from scipy.io import wavfile

from parallel_et.io.waves import Recording, read_recording
from parallel_et.recordings import SoundSteps, Spectrogram, resample
from parallel_et.speech import RATE, VOICES

LENGTHS = {"a.wav": 1600, "b.wav": 2000, "c.wav": 1800}


def sounds(ranks, *args, cwd, **env):
    return launch(ranks, "-m", "parallel_et.sounds", *args, cwd=cwd, **env)


def made(place, *args, ranks=None, table="segments"):
    """What a command has written, its attributes and what it said."""
    done = sounds(ranks, *args, "--output", "out.h5", "--fresh", cwd=place)
    assert done.returncode == 0, done.stderr
    with h5py.File(place / "out.h5") as file:
        assert set(file) == {table}
        assert dict(file.attrs) == dict(file[table].attrs)
        return file[table][()], dict(file.attrs), done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Recordings of chirps with silence around, of different loudness."""
    place = tmp_path_factory.mktemp("sounds")
    (place / "in").mkdir()
    rng = np.random.default_rng(3)
    for k, (name, length) in enumerate(LENGTHS.items()):
        time = np.arange(length) / 8000
        chirp = np.sin(2 * np.pi * (300 + 1500 * (k + 1) * time) * time) * rng.uniform(0.5, 1, length)
        whole = np.concatenate([np.zeros(100 + k), 0.2 * (k + 1) * chirp, np.zeros(300)])
        wavfile.write(place / "in" / name, 8000, (whole * 2**15).astype(np.int16))
    return place


def stored(place, name):
    return wavfile.read(place / "in" / name)[1] / 2**15


def test_all_overlapping_segments_of_recordings_that_fill_their_range(place):
    found, about, said = made(place, "in", "--length", "12.5ms", "--trim", "40", "--scale", "5", ranks=2)
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


def test_segments_in_steps_and_lengths_in_samples(place):
    for length in ("80", "80 samples", "10ms", "0.01 s"):
        found, _, _ = made(place, "in/a.wav", "--length", length, "--step", "2ms")
        np.testing.assert_array_equal(found, sliding_window_view(stored(place, "a.wav"), 80)[::16])


def test_a_sine_is_the_same_at_another_rate(place):
    sine = np.sin(2 * np.pi * 440 * np.arange(11025) / 22050)
    found = resample(sine, 22050, 16000)
    assert len(found) == 8000
    np.testing.assert_allclose(found[400:-400], np.sin(2 * np.pi * 440 * np.arange(8000) / 16000)[400:-400], atol=2e-3)
    high = np.sin(2 * np.pi * 9500 * np.arange(11025) / 22050)
    assert np.abs(resample(high, 22050, 16000)[400:-400]).max() < 0.02
    same, notes = SoundSteps(rate=22050).make_ready("x", Recording(22050, sine[:, None]))
    np.testing.assert_array_equal(same, sine)
    assert notes == {"recorded at": 22050}
    wavfile.write(place / "sine.wav", 22050, sine)
    rows, about, said = made(place, "sine.wav", "in/a.wav", "--rate", "8000", "--length", "100")
    assert "1 of 2 recordings resampled to 8000 Hz, from 22050" in said
    assert about["sampling rate"] == 8000
    np.testing.assert_allclose(rows[:3901, 0], resample(sine, 22050, 8000)[:3901], atol=1e-6)


def test_channels_are_averaged_or_chosen():
    both = Recording(8000, np.array([[1.0, 3.0], [2.0, -4.0]]))
    assert SoundSteps().make_ready("x", both)[0].tolist() == [2.0, -1.0]
    assert SoundSteps(channel=2).make_ready("x", both)[0].tolist() == [3.0, -4.0]


def test_spectrograms_are_plain_fourier_sums_on_a_scale_of_decibels(place):
    options = ("--spectrogram", "--step", "250")
    found, about, _ = made(place, "in", *options, table="spectrograms", ranks=2)
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
        levels = to.magnitudes(tone[None], 8000)[0]
        assert levels.shape == (20, 3)
        assert (levels.argmax(0) == band).all()


@pytest.mark.parametrize("options", [("--count", "9001"), ("--spectrogram", "--count", "700")])
def test_segments_have_the_same_bits_on_any_number_of_ranks(place, tmp_path, options):
    bits = set()
    for ranks in (None, 2, 3):
        output = tmp_path / f"{ranks}.h5"
        call = ("in", "--rate", "11025", "--trim", "30", "--scale", "1", "--hertz", "100", "4000")
        call = call if "--spectrogram" in options else call[:-3]
        done = sounds(ranks, *call, *options, "--output", output, cwd=place)
        assert done.returncode == 0, done.stderr
        with h5py.File(output) as file:
            (table,) = file
            bits.add(file[table][()].tobytes())
    assert len(bits) == 1


def test_bad_files_are_fatal_or_named_once_and_skipped(place, tmp_path):
    for name in LENGTHS:
        shutil.copy(place / "in" / name, tmp_path)
    (tmp_path / "0.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:1000])
    wavfile.write(tmp_path / "quiet.wav", 8000, np.zeros(500, np.int16))
    wavfile.write(tmp_path / "short.wav", 8000, np.ones(50, np.int16))
    wavfile.write(tmp_path / "slow.wav", 4000, np.ones(500, np.int16))
    done = sounds(2, ".", "--scale", "5", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("0.wav: expected a recording, found what cannot be read")
    assert not list(tmp_path.glob("sounds*"))
    done = sounds(2, ".", "--scale", "5", "--bad", "skip", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("skipped") == 4
    assert "skipped quiet.wav: expected sound, found silence\n" in done.stdout
    assert "skipped short.wav: expected at least 100 samples, found 50\n" in done.stdout
    assert "skipped slow.wav: expected 8000 Hz as of the first recording, found 4000 Hz; --rate" in done.stdout
    with h5py.File(tmp_path / "sounds.h5") as file:
        assert [r["file"] for r in json.loads(file.attrs["recordings"])] == list(LENGTHS)


@pytest.mark.parametrize(
    "args, why",
    [
        (("--length", "soon"), "--length: expected a time as 12.5ms, 0.1s or 200 (samples), found soon"),
        (("--length", "0.01ms"), "--length: expected at least one sample, which takes 0.125 ms, found 0.01ms"),
        (("--step", "0"), "--step: expected a time as"),
        (("--step", "2", "--count", "3"), "not allowed with argument"),
        (("--bands", "20"), "--bands: expected --spectrogram with it, found 20"),
        (("--spectrogram", "--length", "200"), "--length: expected none, as with --spectrogram it follows from"),
        (("--spectrogram", "--hertz", "100", "5000"), "--hertz: expected at most half of the sampling rate of 8000 Hz"),
        (("--channel", "2"), "in/a.wav: expected a channel 2, found 1"),
        (("--npy-rate", "-1"), "--npy-rate: expected a positive number, found -1"),
    ],
)
def test_mistakes_get_one_line(place, args, why):
    done = sounds(None, "in", *args, "--output", "no.h5", cwd=place)
    assert done.returncode == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_was_interrupted_goes_on(place, tmp_path):
    call = ("in", "--count", "30000", "--length", "100", "--scale", "5")
    (tmp_path / "sitecustomize.py").write_text(  # as if a signal came after the first rows
        "import os\n"
        "if os.environ.get('PARALLEL_ET_TEST'):\n"
        "    import parallel_et.io.output as output\n"
        "    import signal\n"
        "    output.SYNC, write = 0.0, output.Output.write\n"
        "    output.Output.write = lambda *args: (write(*args), os.kill(os.getpid(), signal.SIGTERM))\n"
    )
    small = {"PARALLEL_ET_TEST": "1", "PYTHONPATH": str(tmp_path)}
    torn = tmp_path / "torn.h5"
    stopped = sounds(2, *call, "--output", torn, cwd=place, **small)
    assert stopped.returncode == 75, stopped.stderr
    assert "stopped by a signal: written" in stopped.stdout
    done = sounds(None, *call, "--output", torn, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "segments are there already" in done.stdout
    whole, _, _ = made(place, *call)
    with h5py.File(torn) as file:
        np.testing.assert_array_equal(file["segments"], whole)


@pytest.mark.parametrize(
    "options, caption", [((), "Waveforms: 12.5 ms of time"), (("--spectrogram",), "100 to 4000 Hz")]
)
def test_a_report_tells_sounds_from_other_curves(place, tmp_path, options, caption):
    made_ = sounds(None, place / "in", "--count", "300", "--scale", "5", *options, cwd=tmp_path)
    assert made_.returncode == 0, made_.stderr
    table = "spectrograms" if options else "segments"
    (tmp_path / "job.toml").write_text(f"""
        model = {{ name = "{"nmf" if options else "linca"}", causes = 6, learn = ["W", "sigma"] }}
        data = {{ source = "sounds.h5:/{table}" }}
        inference = {{ candidates = 4, gamma = 2 }}
        anneal = {{ iterations = 3 }}
    """)
    trained = train(None, "job.toml", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    told = launch(None, "-m", "parallel_et.report", "runs/job", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    page = (tmp_path / "runs/job/report/report.html").read_text()
    assert caption in page
    assert "peak of each recording" in page
    assert (tmp_path / "runs/job/report/fields.png").stat().st_size > 1000


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
def test_ten_voices_speak(tmp_path):
    done = launch(2, "-m", "parallel_et.voices", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("result: 10 recordings in voices") == 1
    spoken = [read_recording(str(tmp_path / "voices" / voice.file)) for voice in VOICES]
    assert {rate for rate, _ in spoken} == {RATE}
    assert len({samples.tobytes() for _, samples in spoken}) == 10
    assert all(0.1 < np.abs(samples).max() < 1 for _, samples in spoken)  # loud, and not clipped
    ready = [SoundSteps(trim=40, scale=5).make_ready("x", recording)[0] for recording in spoken]
    points = sum(len(samples) - 199 for samples in ready)
    assert 389_510 <= points < 1.03 * 389_510  # as many as in the paper, and not many more


def test_without_the_program_one_line_says_how_to_get_it(tmp_path):
    done = launch(None, "-m", "parallel_et.voices", cwd=tmp_path, PATH="/nowhere")
    assert done.returncode == 2
    assert done.stderr == "espeak-ng: expected this program to speak, found none; apt-get install espeak-ng\n"
    assert not (tmp_path / "voices").exists()


def test_the_job_of_the_paper_finds_its_data_in_what_the_commands_write(tmp_path):
    job = (tmp_path / "job.toml").resolve()
    shutil.copy("jobs/et-2010/linca-sound.toml", job)
    with h5py.File(tmp_path / "sounds.h5", "w") as file:
        file["segments"] = np.random.default_rng(1).normal(0, 1, (300, 200)).astype(np.float32)
    settings = ("--set", "data.points=300", "--set", "model.causes=12", "--set", "anneal.iterations=2")
    done = train(None, "job.toml", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
