"""The report that compares two runs."""

import json
import re
import shutil
from html import unescape
from itertools import permutations

import numpy as np
import pytest
from launch import call
from matplotlib.image import imread
from report_pages import Page, browse, coloured, pictures
from requirements import need

from parallel_et import load
from parallel_et.data.base import ArrayRows
from parallel_et.data.holdout import split_holdout
from parallel_et.reports.run_comparison import match_fields

JOB = """
# what a user has written
[model]
name = "linca"
causes = 4
init = { W = { moments = "third" } }
[data]
source = "points.npy"
shape = [3, 3]
holdout = 0.3
[inference]
scheme = "exact"
[anneal]
iterations = 12
temperature = [[0.1, 4.0], [0.6, 1.0]]
"""
RUNS = {
    "one": (),
    "other": ("--set", "model.causes=3", "--set", "data.centre=true"),
    "seed": ("--set", "run.seed=2"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("beside"), np.random.default_rng(1)
    fields = rng.normal(0, 3, (4, 9))
    fields[0] *= 20
    np.save(place / "points.npy", (rng.random((500, 4)) < 0.3) @ fields + rng.normal(0, 1.0, (500, 9)))
    (place / "job.toml").write_text(JOB)
    (place / "all.toml").write_text(JOB.replace("holdout = 0.3\n", ""))
    for name, settings in {**RUNS, "all": ()}.items():
        job = "all.toml" if name == "all" else "job.toml"
        done = call("train", job, "--output", f"runs/{name}", *settings, cwd=place)
        assert done.returncode == 0, done.stderr
    return place


def means(page):
    """Return evidence of the first run, of the second run, and their difference, each with its standard error."""
    return [[float(n) for n in pair] for pair in re.findall(r"<td>(-?[\d.]+) ± ([\d.]+)</td>", page.source)[:3]]


def test_matched_fields_have_the_largest_sum_of_cosines():
    rng = np.random.default_rng(3)
    one, other = rng.normal(size=(6, 4)), rng.normal(size=(6, 5))
    cosines = [
        [one[:, i] @ other[:, j] / np.linalg.norm(one[:, i]) / np.linalg.norm(other[:, j]) for j in range(5)]
        for i in range(4)
    ]
    best = max(permutations(range(5), 4), key=lambda p: sum(cosines[i][j] for i, j in enumerate(p)))
    found = match_fields(one, other)
    assert {i: best[i] for i in range(4)} == dict(zip(found.one.tolist(), found.other.tolist(), strict=True))
    np.testing.assert_allclose(found.cosines, [cosines[i][best[i]] for i in found.one])
    assert (np.diff(found.cosines) <= 0).all()
    np.testing.assert_array_equal(match_fields(np.zeros((6, 2)), one).cosines, [0.0, 0.0])


def test_the_evidence_is_that_of_rows_that_both_runs_hold_out(place):
    done = call("report", "runs/one", "runs/other", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "report: runs/one/report-other/report.html"
    assert set(pictures(place / "runs/one/report-other")) == {"matched", "matched-own", "curves", "evidence"}
    page = Page(place / "runs/one/report-other/report.html")
    assert page.title == "one compared with other"
    Y = np.load(place / "points.npy")
    held = Y[split_holdout(ArrayRows(Y), 0.3, 1)[1].row_numbers(0, 150)]
    one, other = (load(place / "runs" / name).evidence(held) for name in ("one", "other"))
    expected = [[v.mean(), v.std(ddof=1) / np.sqrt(150)] for v in (one, other, one - other)]
    np.testing.assert_allclose(means(page), expected, atol=6e-5)
    assert "150 rows that neither run has learned from" in page.text
    assert "one explains the points better." in page.text
    cosines = match_fields(*(load(place / "runs" / name).W for name in ("one", "other"))).cosines
    close = (cosines > 0.95).sum()
    assert f"{close} of 3 pairs have a cosine above 0.95; the mean cosine is {cosines.mean():.3f}" in page.text
    assert "Causes of one without a partner: 1." in page.text
    assert re.search(r"model\.causes</th><td>4</td><td>3</td>", page.source)
    assert re.search(r"data\.centre</th><td>False</td><td>True</td>", page.source)


def test_runs_with_different_seeds_share_some_held_out_rows(place):
    assert call("report", "runs/one", "runs/seed", "--quiet", cwd=place).returncode == 0
    both = [
        set(split_holdout(ArrayRows(np.zeros((500, 1))), 0.3, seed)[1].row_numbers(0, 150).tolist()) for seed in (1, 2)
    ]
    count = len(both[0] & both[1])
    assert f"{count} rows that neither run has learned from" in Page(place / "runs/one/report-seed/report.html").text


def test_without_held_out_rows_the_caption_states_that_a_run_has_learned_from_the_rows(place):
    assert call("report", "runs/one", "runs/all", "--quiet", cwd=place).returncode == 0
    text = Page(place / "runs/one/report-all/report.html").text
    assert "500 rows of the data that at least one of the runs has learned from" in text


def test_rows_can_be_given(place, tmp_path):
    Y = np.load(place / "points.npy")[:50] + 1.0
    np.save(tmp_path / "given.npy", Y)
    done = call("report", "runs/one", "runs/other", "--data", tmp_path / "given.npy", "--output", tmp_path, cwd=place)
    assert done.returncode == 0, done.stderr
    page = Page(tmp_path / "report.html")
    expected = [load(place / "runs" / name).score(Y) for name in ("one", "other")]
    np.testing.assert_allclose([mean for mean, _ in means(page)[:2]], expected, atol=6e-5)
    assert "50 rows of" in page.text


def test_without_common_rows_the_report_has_all_other_chapters(place, tmp_path):
    for name in ("one", "other"):
        shutil.copytree(place / f"runs/{name}", tmp_path / name, ignore=shutil.ignore_patterns("report*"))
    done = call("report", "one", "other", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = pictures(tmp_path / "one/report-other")
    assert set(found) == {"matched", "matched-own", "curves"}
    assert "--data FILE sets rows for both" in Page(tmp_path / "one/report-other/report.html").text


def test_runs_of_other_sizes_and_wrong_options_are_refused(place, tmp_path):
    np.save(tmp_path / "points.npy", np.load(place / "points.npy")[:, :4])
    (tmp_path / "job.toml").write_text(JOB.replace("[3, 3]", "[2, 2]"))
    assert call("train", "job.toml", "--set", "anneal.iterations=1", cwd=tmp_path).returncode == 0
    for args, words in (
        ((place / "runs/one", tmp_path / "runs/job"), "expected points with the same number of dimensions"),
        ((place / "runs/one", "--data", "points.npy"), "--data: expected two runs, found one"),
        (("runs/one", "runs/../runs/one"), "expected a run other than the first, found the same"),
        (("a", "b", "c"), "DIR: expected one run or two, found 3"),
    ):
        done = call("report", *args, "--quiet", cwd=place)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_a_report_has_held_out_evidence_and_explained_variance(place):
    assert call("report", "runs/one", "--quiet", cwd=place).returncode == 0
    page, result, Y = (
        Page(place / "runs/one/report/report.html"),
        load(place / "runs/one"),
        np.load(place / "points.npy"),
    )
    left = ((Y - result.reconstruct(Y)) ** 2).mean()
    assert "350 and 150 held out" in page.text
    assert f"{result.history['holdout_evidence'][-1]:.6g}" in page.text
    assert f"{np.sqrt((Y - Y.mean(0)).var()):.4g}" in page.text
    assert f"{1 - left / (Y - Y.mean(0)).var():.1%}, residual {np.sqrt(left):.4g}".replace("%", " %") in page.text
    assert "# what a user has written" in page.text
    assert "with all defaults" in page.text
    assert "Constant values: points used 350, unused causes 0." in page.text
    assert re.search(r'class="second" name="fields" checked', page.source)  # one field is far stronger than the others


LOOK = """<script>addEventListener("load", () => {
const shown = () => [...document.querySelectorAll(".either img")].map(image => image.offsetWidth > 0);
const clicked = kind => { document.querySelector(`.either .${kind}`).click(); return shown() };
document.body.dataset.seen = JSON.stringify({ before: shown(), first: clicked("first"), second: clicked("second"),
width: document.documentElement.scrollWidth, room: innerWidth }) })</script>"""


def test_a_browser_switches_the_scale_without_a_script(place, tmp_path):
    need("chromium")
    assert call("report", "runs/other", "runs/one", "--output", tmp_path, "--quiet", cwd=place).returncode == 0
    page, shot, seen = (tmp_path / name for name in ("report.html", "shot.png", "seen.html"))
    browse(page, f"--screenshot={shot}", "--window-size=1000,2400")
    assert coloured(imread(shot)[..., :3])
    seen.write_text(page.read_text().replace("</body>", f"{LOOK}</body>"))
    for width in (500, 1000):  # of a phone and of a desk
        dom = browse(seen, "--dump-dom", f"--window-size={width},800")
        found = json.loads(unescape(re.search(r'data-seen="(.*?)"', dom)[1]))
        assert (sum(found["before"]), found["first"], found["second"]) == (1, [True, False], [False, True])
        assert found["width"] == found["room"]
