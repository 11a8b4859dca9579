"""Two runs side by side, as their users see them."""

import json
import re
import shutil
from html import unescape
from itertools import permutations

import numpy as np
import pytest
from launch import call
from matplotlib.image import imread
from needs import need
from pages import Page, browse, coloured, pictures

from parallel_et import load
from parallel_et.data.base import ArrayRows
from parallel_et.data.holdout import split
from parallel_et.reports.run_comparison import match

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
    """Evidence of the first, of the second and the difference, each with its error."""
    return [[float(n) for n in pair] for pair in re.findall(r"<td>(-?[\d.]+) ± ([\d.]+)</td>", page.source)[:3]]


def test_fields_are_matched_as_well_as_can_be():
    rng = np.random.default_rng(3)
    one, other = rng.normal(size=(6, 4)), rng.normal(size=(6, 5))
    cosines = [
        [one[:, i] @ other[:, j] / np.linalg.norm(one[:, i]) / np.linalg.norm(other[:, j]) for j in range(5)]
        for i in range(4)
    ]
    best = max(permutations(range(5), 4), key=lambda p: sum(cosines[i][j] for i, j in enumerate(p)))
    found = match(one, other)
    assert {i: best[i] for i in range(4)} == dict(zip(found.one.tolist(), found.other.tolist(), strict=True))
    np.testing.assert_allclose(found.cosines, [cosines[i][best[i]] for i in found.one])
    assert (np.diff(found.cosines) <= 0).all()
    np.testing.assert_array_equal(match(np.zeros((6, 2)), one).cosines, [0.0, 0.0])


def test_the_evidence_is_that_of_rows_that_neither_has_learned_from(place):
    done = call("report", "runs/one", "runs/other", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "report: runs/one/report-other/report.html"
    assert set(pictures(place / "runs/one/report-other")) == {"matched", "matched-own", "curves", "evidence"}
    page = Page(place / "runs/one/report-other/report.html")
    assert page.title == "one beside other"
    Y = np.load(place / "points.npy")
    held = Y[split(ArrayRows(Y), 0.3, 1)[1].numbers(0, 150)]
    one, other = (load(place / "runs" / name).evidence(held) for name in ("one", "other"))
    expected = [[v.mean(), v.std(ddof=1) / np.sqrt(150)] for v in (one, other, one - other)]
    np.testing.assert_allclose(means(page), expected, atol=6e-5)
    assert "150 rows that neither run has learned from" in page.text
    assert "one explains them better." in page.text
    cosines = match(*(load(place / "runs" / name).W for name in ("one", "other"))).cosines
    assert (
        f"{(cosines > 0.95).sum()} of 3 pairs have a cosine above 0.95, the mean is {cosines.mean():.3f}" in page.text
    )
    assert "1 of the causes of one are left over" in page.text
    assert re.search(r"model\.causes</th><td>4</td><td>3</td>", page.source)
    assert re.search(r"data\.centre</th><td>False</td><td>True</td>", page.source)


def test_with_other_seeds_they_are_the_rows_that_both_hold_out(place):
    assert call("report", "runs/one", "runs/seed", "--quiet", cwd=place).returncode == 0
    both = [set(split(ArrayRows(np.zeros((500, 1))), 0.3, seed)[1].numbers(0, 150).tolist()) for seed in (1, 2)]
    count = len(both[0] & both[1])
    assert f"{count} rows that neither run has learned from" in Page(place / "runs/one/report-seed/report.html").text


def test_where_one_holds_out_nothing_it_is_said_that_it_has_learned_from_the_rows(place):
    assert call("report", "runs/one", "runs/all", "--quiet", cwd=place).returncode == 0
    text = Page(place / "runs/one/report-all/report.html").text
    assert "500 rows of the data, of which at least one of the runs has learned" in text


def test_rows_can_be_given(place, tmp_path):
    Y = np.load(place / "points.npy")[:50] + 1.0
    np.save(tmp_path / "given.npy", Y)
    done = call("report", "runs/one", "runs/other", "--data", tmp_path / "given.npy", "--output", tmp_path, cwd=place)
    assert done.returncode == 0, done.stderr
    page = Page(tmp_path / "report.html")
    expected = [load(place / "runs" / name).score(Y) for name in ("one", "other")]
    np.testing.assert_allclose([mean for mean, _ in means(page)[:2]], expected, atol=6e-5)
    assert "50 rows of" in page.text


def test_without_rows_to_compare_the_rest_is_shown(place, tmp_path):
    for name in ("one", "other"):
        shutil.copytree(place / f"runs/{name}", tmp_path / name, ignore=shutil.ignore_patterns("report*"))
    done = call("report", "one", "other", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = pictures(tmp_path / "one/report-other")
    assert set(found) == {"matched", "matched-own", "curves"}
    assert "--data FILE names rows for both" in Page(tmp_path / "one/report-other/report.html").text


def test_runs_of_other_sizes_and_wrong_options_are_refused(place, tmp_path):
    np.save(tmp_path / "points.npy", np.load(place / "points.npy")[:, :4])
    (tmp_path / "job.toml").write_text(JOB.replace("[3, 3]", "[2, 2]"))
    assert call("train", "job.toml", "--set", "anneal.iterations=1", cwd=tmp_path).returncode == 0
    for args, words in (
        ((place / "runs/one", tmp_path / "runs/job"), "expected points of as many dimensions as those of the other"),
        ((place / "runs/one", "--data", "points.npy"), "--data: expected two runs, found one"),
        (("runs/one", "runs/../runs/one"), "expected another run than the first, found the same"),
        (("a", "b", "c"), "DIR: expected one run or two, found 3"),
    ):
        done = call("report", *args, "--quiet", cwd=place)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_one_run_tells_what_it_holds_out_and_what_it_explains(place):
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
    assert "with every default filled in" in page.text
    assert "The same all the time: points used 350, unused causes 0." in page.text
    assert re.search(r'class="second" name="fields" checked', page.source)  # one field is far stronger than the others


LOOK = """<script>addEventListener("load", () => {
const shown = () => [...document.querySelectorAll(".either img")].map(image => image.offsetWidth > 0);
const clicked = kind => { document.querySelector(`.either .${kind}`).click(); return shown() };
document.body.dataset.seen = JSON.stringify({ before: shown(), first: clicked("first"), second: clicked("second"),
width: document.documentElement.scrollWidth, room: innerWidth }) })</script>"""


def test_a_browser_changes_from_one_scale_to_the_other_without_a_script_of_ours(place, tmp_path):
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
