"""Held-out rows and the other rows: every row is in one of both subsets, and any rank finds it."""

import numpy as np
import pytest

from parallel_et.data.base import GROUP_POINTS, ArrayRows
from parallel_et.data.holdout import split_holdout
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.runs.setup import open_source


@pytest.mark.parametrize("points", [5, GROUP_POINTS - 1, GROUP_POINTS, 3 * GROUP_POINTS + 7])
@pytest.mark.parametrize("share", [0.1, 0.3333, 0.5, 0.8])
def test_every_row_is_learned_from_or_held_out(points, share):
    rng = np.random.default_rng(points)
    Y = rng.normal(size=(points, 3)).astype(np.float32)
    parts = split_holdout(ArrayRows(Y), share, seed=7)
    numbers = [part.row_numbers(0, part.points) for part in parts]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(points))
    assert parts[1].points == int(share * points + 0.5)
    for part, mine in zip(parts, numbers, strict=True):
        for first, last in np.sort(rng.integers(0, part.points + 1, (20, 2)), axis=1).tolist():
            np.testing.assert_array_equal(part.read(first, last)[:, :3], Y[mine[first:last]])
            np.testing.assert_array_equal(part.row_numbers(first, last), mine[first:last])
        assert part.read(0, 0).dtype == np.float32


def test_other_seeds_hold_out_others_and_all_rows_are_as_likely():
    source, seeds = ArrayRows(np.zeros((600, 1))), 400
    times = sum(
        np.bincount(split_holdout(source, 0.25, seed)[1].row_numbers(0, 150), minlength=600) for seed in range(seeds)
    )
    assert times.sum() == 150 * seeds
    assert np.abs(times - 100).max() < 5 * np.sqrt(seeds * 0.25 * 0.75)


def test_rows_are_read_piece_by_piece(monkeypatch):
    from parallel_et.data import holdout

    monkeypatch.setattr(holdout, "READ_BYTES", 1)  # a group
    Y = np.arange(2000.0).reshape(1000, 2)
    learned = split_holdout(ArrayRows(Y), 0.2, seed=1)[0]
    asked = []
    read = learned.source.read
    monkeypatch.setattr(learned.source, "read", lambda first, last: asked.append(last - first) or read(first, last))
    np.testing.assert_array_equal(learned.read(3, 790)[:, :2], Y[learned.row_numbers(3, 790)])
    assert max(asked) == GROUP_POINTS


def test_of_a_generator_they_are_the_rows_that_it_has_without():
    table = {"model": {"name": "linca", "causes": 4}, "inference": {"scheme": "exact"}}
    source = open_source(check_job({**table, "data": {"source": "bars", "points": 700, "grid": 3}}))
    held = split_holdout(source, 0.1, seed=3)[1]
    np.testing.assert_array_equal(held.read(0, 70), source.read(0, 700)[held.row_numbers(0, 70)])


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(UserError, match=r"data\.holdout: expected rows to learn from .* found 5 and 0 of 5"):
        split_holdout(ArrayRows(np.zeros((5, 1))), 0.01, seed=1)
