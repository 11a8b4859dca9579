"""The command report, its page and its pictures, also in a browser."""

import json
import re
import shutil
import signal
from html import unescape
from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import call, ended, launch, start, wait_for
from matplotlib.image import imread
from report_pages import Page, browse, coloured, pictures
from requirements import need

from parallel_et.control.progress import Reporter
from parallel_et.inference.posterior import Inference
from parallel_et.reports.run_data import SAMPLE_POINTS, read_run_data, sample_stretches
from parallel_et.runs.directory import RunDirectory

JOBS = Path(__file__).parent.parent.parent / "jobs"
DEMO = JOBS / "demo.toml"
SOUND = """
[model]
name = "linca"
causes = 4
[data]
source = "sound.npy"
[inference]
candidates = 4
gamma = 2
[anneal]
iterations = 5
"""
ON_OFF = """
[model]
name = "nmf"
causes = 3
[data]
source = "patches.h5:/patches"
[inference]
candidates = 3
gamma = 2
[anneal]
iterations = 3
"""


def report(*args, ranks=None, cwd="."):
    if ranks is None:
        return call("report", *args, cwd=cwd)
    return launch(ranks, "-m", "parallel_et", "report", *args, cwd=cwd)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of several kinds, finished."""
    place = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(1)
    waves = np.sin(np.outer([1, 2, 3, 5], np.arange(49.0)) / 5)
    np.save(place / "sound.npy", (rng.random((300, 4)) < 0.3) @ waves + 0.1 * rng.standard_normal((300, 49)))
    (place / "sound.toml").write_text(SOUND)
    with h5py.File(place / "patches.h5", "w") as file:
        file["patches"] = rng.random((200, 2, 3, 4))
        file.attrs["filter"] = "difference of <Gaussians>"
    (place / "onoff.toml").write_text(ON_OFF)
    mca = JOBS / "et-2010/mca-bars-clean.toml"
    for job in ((DEMO, "--set", "run.snapshots=30"), ("sound.toml",), ("onoff.toml",), (mca, "--output", "runs/mca")):
        done = call("train", *job, cwd=place)
        assert done.returncode == 0, done.stderr
    return place


def test_a_report_shows_all_of_a_finished_run(place):
    done = report("runs/demo", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "runs/demo: the parameters of result.h5, after 100 iterations"
    assert done.stdout.splitlines()[-1] == "report: runs/demo/report/report.html"
    found = pictures(place / "runs/demo/report")
    names = {
        "fields",
        "fields-own",
        "snapshots",
        "curves",
        "quality",
        "evidence",
        "usage",
        "examples",
        "generated",
        "time",
    }
    assert set(found) == names
    assert all(image.std() > 0.02 for image in found.values())
    assert coloured(found["fields"])
    page = Page(place / "runs/demo/report/report.html")
    assert page.title == "demo: 10 causes of linca"
    for words in (
        "100 of 100",
        "finished",
        "all 10 causes found",
        "all 500 points",
        "the last cut used",
        'name = "linca"',
        "[anneal.cut]",
        "data fingerprint",
        "version numpy",
        "restarts",
        "commit",
    ):
        assert words in page.text
    assert page.text.count("cannot be read") == 0


def test_fields_that_cannot_be_negative_have_no_colour(place):
    done = report("runs/mca", cwd=place)
    assert done.returncode == 0, done.stderr
    found = pictures(place / "runs/mca/report")
    assert not coloured(found["fields"])
    assert not coloured(found["examples"])
    assert "snapshots" not in found


def test_masks_and_features_are_drawn_side_by_side_and_scenes_by_their_order(tmp_path):
    settings = ("anneal.iterations=6", "data.points=200", "run.snapshots=3", "data.grid=3", "model.causes=5")
    options = [word for one in settings for word in ("--set", one)]
    job = JOBS / "oca-2014/colored-bars.toml"
    assert call("train", job, *options, "--output", "run", cwd=tmp_path).returncode == 0
    done = report("run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = pictures(tmp_path / "run/report")
    assert {"fields", "parts", "snapshots", "examples", "generated"} <= set(found)
    assert all(coloured(found[name]) for name in ("fields", "parts", "examples", "generated"))
    text = Page(tmp_path / "run/report/report.html").text
    assert "the fields of the causes in the MAP state, the nearest first." in text
    assert "Mask and feature of each cause" in text
    assert "noise on W 0.1, noise on sigma 0.05, noise on pi 0.05" in text


def test_vectors_are_drawn_as_curves_by_default(place, tmp_path):
    assert report("runs/sound", cwd=place).returncode == 0
    curves = pictures(place / "runs/sound/report")
    assert "drawn as curves" in Page(place / "runs/sound/report/report.html").text
    assert not coloured(curves["fields"])
    done = report("runs/sound", "--output", tmp_path / "a/b", "--shape", "7x7", "--quiet", cwd=place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert coloured(pictures(tmp_path / "a/b")["fields"])


def test_on_and_off_channels_are_one_picture_and_the_report_has_the_attributes_of_the_file(place):
    assert report("runs/onoff", cwd=place).returncode == 0
    assert coloured(pictures(place / "runs/onoff/report")["fields"])
    text = Page(place / "runs/onoff/report/report.html").text
    assert "on channel minus the off channel" in text
    assert "difference of <Gaussians>" in text


def test_without_the_data_the_report_has_all_other_chapters(place, tmp_path):
    shutil.copytree(place / "runs/sound", tmp_path / "sound", ignore=shutil.ignore_patterns("report"))
    done = report("sound", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: the data cannot be read" in done.stdout
    found = pictures(tmp_path / "sound/report")
    assert set(found) == {"fields", "fields-own", "curves", "generated", "time"}
    text = Page(tmp_path / "sound/report/report.html").text
    assert "no points are inferred: sound.npy: expected a .npy file, found nothing there" in text
    assert "the largest norm is first" in text
    assert "shape of a point is unknown" in text


def test_other_data_of_the_same_name_are_refused(place, tmp_path):
    shutil.copytree(place / "runs/sound", tmp_path / "sound", ignore=shutil.ignore_patterns("report"))
    np.save(tmp_path / "sound.npy", np.zeros((10, 49)))
    assert report("sound", cwd=tmp_path).returncode == 0
    words = "sound.npy: expected the run's 300 points of 49 dimensions, found 10 of 49"
    assert words in Page(tmp_path / "sound/report/report.html").text


def test_a_report_about_a_running_run_does_not_disturb_it(tmp_path):
    long = ("--set", "anneal.iterations=100000", "--set", "run.checkpoint.every=20")
    process = start(None, DEMO, *long, cwd=tmp_path)
    wait_for(lambda: list(tmp_path.glob("runs/demo/checkpoints/0*.h5")), process)
    done = report("runs/demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pictures(tmp_path / "runs/demo/report")
    text = Page(tmp_path / "runs/demo/report/report.html").text
    assert f"running (process {process.pid} on" in text
    assert re.search(r"\d+ of 100000", text)
    process.send_signal(signal.SIGTERM)
    assert ended(process, tmp_path)[1] == 75
    assert report("runs/demo", cwd=tmp_path).returncode == 0
    assert "stopped; the same command resumes it" in Page(tmp_path / "runs/demo/report/report.html").text


def test_only_the_root_writes_the_report(place, tmp_path):
    done = report("runs/demo", "--output", tmp_path, ranks=2, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1
    assert len(pictures(tmp_path)) == 10


def test_usage_and_evidence_are_computed_from_the_points(place, monkeypatch):
    monkeypatch.chdir(place)
    study = read_run_data(RunDirectory("runs/demo"), None, Reporter(False, True), {})
    sample = study.sample
    np.testing.assert_array_equal(sample.rows, np.arange(500))
    whole = Inference(study.model, study.scheme, study.params, ("evidence", "means")).block(sample.source.read(0, 500))
    np.testing.assert_allclose(sample.usage, whole["means"].mean(0), rtol=1e-12)
    np.testing.assert_allclose(sample.evidence, whole["evidence"], rtol=1e-12)
    assert (np.diff(sample.usage[study.order]) <= 0).all()


@pytest.mark.parametrize("points", [1, 64, 65, SAMPLE_POINTS, SAMPLE_POINTS + 1, 10**7])
def test_a_sample_is_evenly_spaced(points):
    rows = np.concatenate([np.arange(*stretch) for stretch in sample_stretches(points)])
    assert len(rows) == min(points, SAMPLE_POINTS)
    assert (np.diff(rows) > 0).all()
    assert (rows[0], rows[-1]) == (0, points - 1)


LOOK = """<script>addEventListener("load", () => { document.body.dataset.seen = JSON.stringify({
title: document.title, images: [...document.images].map(image => image.naturalWidth),
width: document.documentElement.scrollWidth, room: innerWidth }) })</script>"""


def test_a_browser_shows_the_page_with_all_its_pictures(place, tmp_path):
    need("chromium")
    assert report("runs/demo", "--output", tmp_path, cwd=place).returncode == 0
    for path in tmp_path.glob("*.png"):  # the page alone has to do
        path.unlink()
    page, shot, seen = (tmp_path / name for name in ("report.html", "shot.png", "seen.html"))
    browse(page, f"--screenshot={shot}", "--window-size=1000,3000")
    image = imread(shot)[..., :3]
    assert image.shape[:2] == (3000, 1000)
    assert (image < 0.5).any(2).mean() > 0.01
    assert coloured(image)
    seen.write_text(page.read_text().replace("</body>", f"{LOOK}</body>"))
    for width in (500, 1000):  # of a phone and of a desk
        dom = browse(seen, "--dump-dom", f"--window-size={width},800")
        found = json.loads(unescape(re.search(r'data-seen="(.*?)"', dom)[1]))
        assert found["title"] == "demo: 10 causes of linca"
        assert len(found["images"]) == 10
        assert min(found["images"]) > 0
        assert found["width"] == found["room"]  # nothing sticks out
