import tracemalloc

import numpy as np
import pytest

from parallel_et.data.bars import Bars, BarsOptions, bar_fields

VARIANTS = {  # options, number of bars
    "standard": ({}, 10),
    "overlapping": ({"grid": 9, "width": 2, "probability": 2 / 16}, 16),
    "eight by eight": ({"grid": 8, "probability": 0.25}, 16),
    "of several widths": ({"width": [1, 1, 3], "probability": 1 / 3}, 6),
    "short": ({"grid": 3, "length": 2, "probability": 1 / 6}, 12),
    "half of them negative": ({"negative": 0.5}, 10),
    "half of them rare": ({"probability": [0.05, 0.2] * 5}, 10),
}


def source(points=400, seed=3, **options):
    return Bars(BarsOptions(points=points, **options), seed, None)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_has_its_number_of_different_bars(name):
    options, count = VARIANTS[name]
    assert BarsOptions(points=1, **options).inconsistencies() == []
    bars = bar_fields(BarsOptions(points=1, **options))
    assert len(np.unique(bars, axis=0)) == len(bars) == count == BarsOptions(points=1, **options).bars
    assert set(np.unique(np.abs(bars))) == {0.0, 10.0}
    assert (bars.min(1) < 0).sum() == round(options.get("negative", 0) * count)


def test_bars_are_counted_and_not_built_to_see_what_a_job_asks():
    tracemalloc.start()
    options = BarsOptions(points=100, grid=1000, probability=0.001)
    assert options.inconsistencies() == []
    large = Bars(options, 1, None)
    assert (large.dims, large.working_bytes > 16e9) == (1_000_000, True)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_bars_add_up_or_hide_each_other():
    for overlap, top in (("sum", 20.0), ("max", 10.0)):
        Y = source(overlap=overlap, noise={"kind": "none"}).read(0, 400)
        assert Y.max() == top


def test_bars_appear_as_often_as_they_should():
    N = 20_000
    p = [0.05, 0.2] * 5
    drawn = source(points=N, probability=p, noise={"kind": "none"})
    counts = np.linalg.lstsq(drawn.fields.T, drawn.read(0, N).T, rcond=None)[0]
    # the ten bars are dependent (all rows together equal all columns): compare what a pixel shows on average instead
    shown = drawn.read(0, N).mean(0)
    assert counts.shape == (10, N)
    np.testing.assert_allclose(shown, drawn.fields.T @ p, atol=5 * 10 * np.sqrt(2 * 0.25 / N))


@pytest.mark.parametrize("kind", ["gauss", "poisson", "none"])
def test_noise_is_of_its_kind(kind):
    clean = source(points=4000, noise={"kind": "none"}).read(0, 4000)
    noisy = source(points=4000, noise={"kind": kind, "sigma": 2.0}).read(0, 4000)
    error = noisy - clean
    if kind == "none":
        assert not error.any()
    elif kind == "gauss":
        assert error.std() == pytest.approx(2.0, rel=0.02)
    else:
        assert (noisy == np.round(noisy)).all()
        assert not noisy[clean == 0].any()
        assert error[clean == 10].var() == pytest.approx(10.0, rel=0.1)


def test_patterns_with_few_bars_are_left_out():
    Y = source(at_least=2, noise={"kind": "none"}).read(0, 400)
    assert (Y.sum(1) >= 2 * 50).all()
    assert not (source(at_least=0, noise={"kind": "none"}).read(0, 400).sum(1) >= 2 * 50).all()


def test_rows_depend_on_the_seed_alone_however_they_are_read():
    whole = source(points=1000, at_least=1).read(0, 1000)
    parts = [
        source(points=1000, at_least=1).read(a, b) for a, b in ((0, 1), (1, 255), (255, 700), (700, 700), (700, 1000))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(source(points=300, at_least=1).read(0, 300), whole[:300])
    assert not np.array_equal(source(points=1000, seed=4, at_least=1).read(0, 1000), whole)
    np.testing.assert_array_equal(
        source(points=1000, seed=9).read(0, 9), Bars(BarsOptions(points=9, seed=9), 1, None).read(0, 9)
    )


@pytest.mark.parametrize("colours", ["none", "white", "hues", "dealt"])
def test_the_nearest_bar_hides_those_behind_it_in_any_order(colours):
    keys = {"grid": 3, "value": 2.0, "probability": 0.4, "overlap": "nearest", "noise": {"kind": "none"}}
    data = source(colours=colours, **keys)
    truth, channels = data.truth(), 1 if colours == "none" else 3
    assert data.shape == ((3, 3) if channels == 1 else (3, 3, 3))
    assert (truth["W"].shape, truth["T"].shape) == ((9, 6), (channels, 6))
    assert truth["T"].max() == 2.0
    assert len(np.unique(truth["T"], axis=1).T) == (6 if colours in ("hues", "dealt") else 1)
    points, s = data.group(0)
    shown = set()
    for point, active in zip(points.reshape(len(points), 9, channels), s, strict=True):
        for d, pixel in enumerate(point):
            there = [h for h in np.flatnonzero(active) if truth["W"][d, h]]
            same = [h for h in there if (pixel == truth["T"][:, h]).all()]
            assert same or (not there and not pixel.any())
            shown |= {(d, same[0])} if len(there) == 2 and len(same) == 1 else set()
    assert colours in ("none", "white") or len(shown) == 18  # in each pixel now the one bar, now the other


def test_hues_are_as_different_as_can_be_and_dealt_out_by_the_seed():
    keys = {"grid": 4, "value": 1.0, "probability": 0.25, "overlap": "nearest"}
    in_order = source(colours="hues", **keys).features
    np.testing.assert_allclose(in_order[[0, 2, 4, 6]], [[1, 0, 0], [0.5, 1, 0], [0, 1, 1], [0.5, 0, 1]])
    shuffled = [source(colours="dealt", seed=seed, **keys).features.tolist() for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert sorted(shuffled[0]) == sorted(shuffled[2]) == sorted(in_order.tolist())


def test_coloured_bars_that_add_up_are_fields_of_all_channels():
    data = source(colours="hues", grid=3, noise={"kind": "none"}, probability=0.4)
    points, s = data.group(0)
    np.testing.assert_array_equal(points, s @ data.truth()["W"].T)


def test_negative_bars_hide_nothing():
    options = BarsOptions(points=1, overlap="nearest", negative=0.5)
    assert [key for key, *_ in options.inconsistencies()] == ["negative"]


def test_bars_of_any_grey_value_have_its_mean_and_standard_deviation():
    drawn = source(points=4000, value=10.0, std=2.5, probability=0.5, overlap="max", noise={"kind": "none"}, grid=2)
    truth = drawn.truth()
    assert (float(truth["mu"]), float(truth["psi"])) == (1.0, 0.0625)
    Y, s = drawn.read(0, 4000), np.concatenate([states for _, _, states in drawn.draw_groups(0, 4000)])
    shown = Y[s.sum(1) == 1].max(1)
    assert shown.mean() == pytest.approx(10.0, abs=5 * 2.5 / np.sqrt(len(shown)))
    assert shown.std() == pytest.approx(2.5, rel=5 / np.sqrt(2 * len(shown)))
