"""Mixed sounds: their log-spectrograms, and refused input."""

import numpy as np
import pytest

from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.runs.setup import open_source

RATE, WINDOW = 8000, 200
SAMPLES = np.arange(1000) / RATE
EXPECTED = "expected sounds x 200 samples and more that are not all zero, found the shape"


def source_of(place, waves, **data):
    np.save(place / "waves.npy", waves)
    data = {"source": "mixed", "points": 300, "waves": str(place / "waves.npy"), "probability": 0.4, **data}
    return open_source(
        check_job({"model": {"name": "mca3", "causes": 3}, "data": data, "inference": {"scheme": "exact"}})
    )


def tones():
    """Return a loud tone at 500 Hz, a softer tone at 2000 Hz that ends, and a tone 60 dB below the first."""
    waves = np.array([np.sin(2 * np.pi * hertz * SAMPLES) for hertz in (500.0, 2000.0, 1000.0)])
    waves[1, 400:] = 0.0
    return waves * np.array([1.0, 0.3, 1e-3])[:, None]


def reference_power(wave, source):
    """Compute the power of a wave by frequency and window."""
    power, k = np.empty(source.shape), np.arange(WINDOW)
    hamming = 0.54 - 0.46 * np.cos(2 * np.pi * k / (WINDOW - 1))
    for c, hertz in enumerate(100 * 40 ** (np.arange(50) / 49)):
        for w in range(source.shape[1]):
            piece = hamming * wave[100 * w : 100 * w + WINDOW]
            cosine, sine = (piece @ wave_of(2 * np.pi * hertz * k / RATE) for wave_of in (np.cos, np.sin))
            power[c, w] = cosine**2 + sine**2
    return power


def test_points_are_log_spectrograms_of_sums_of_waves(tmp_path):
    waves = tones()
    source = source_of(tmp_path, waves)
    assert (source.shape, source.dims) == ((50, 9), 450)
    loudest = max(reference_power(wave, source).max() for wave in waves)
    rows, states = source.group(0)
    np.testing.assert_array_equal(source.read(0, 256)[:, :450], rows)
    assert states.mean() == pytest.approx(0.4, abs=0.06)
    for n in [int(np.argmax(states.sum(1) == k)) for k in (0, 2, 3)]:
        power = reference_power(states[n] @ waves, source)
        with np.errstate(divide="ignore"):
            decibels = 10 * np.log10(power / loudest)
        expected = np.maximum(0.0, 10 * (1 + decibels / 42.8)).ravel()
        np.testing.assert_allclose(rows[n], expected, atol=1e-9)


def test_the_truth_is_what_is_seen_of_each_sound_alone(tmp_path):
    source = source_of(tmp_path, tones(), value=4.0)
    fields = source.truth()["W"].T.reshape(3, 50, 9)
    assert fields.max() == pytest.approx(4.0)
    assert fields[1, :, :3].max() > 1
    assert fields[1, :, 4:].max() == 0  # it has ended
    assert fields[2].max() == 0  # it is too soft
    np.testing.assert_array_equal(source.truth()["pi"], 0.4)


def test_other_waves_are_other_data(tmp_path):
    first = source_of(tmp_path, tones()).version()
    assert first == source_of(tmp_path, tones()).version()
    assert first != source_of(tmp_path, 1.1 * tones()).version()


@pytest.mark.parametrize(
    "waves, keys, line",
    [
        (
            np.zeros((2, 400)),
            {},
            "expected sounds x 200 samples and more that are not all zero, found the shape (2, 400)",
        ),
        (
            np.ones((2, 100)),
            {},
            "expected sounds x 200 samples and more that are not all zero, found the shape (2, 100)",
        ),
        (np.ones(400), {}, "expected sounds x 200 samples and more that are not all zero, found the shape (400,)"),
        (np.full((2, 400), np.inf), {}, "expected numbers, found others"),
        (tones(), {"low": 4000.0}, "data.low: expected below data.high = 4000.0, found 4000.0"),
        (tones(), {"high": 5000.0}, "data.high: expected at most half of data.rate = 8000.0, found 5000.0"),
    ],
)
def test_what_cannot_be_seen_is_refused_in_a_line(tmp_path, waves, keys, line):
    with pytest.raises(UserError) as error:
        source_of(tmp_path, waves, **keys)
    assert str(error.value).endswith(line)
    assert "\n" not in str(error.value)
