"""First jobs: every model has one, which runs without changes."""

import numpy as np
import pytest
from launch import call

from parallel_et.job.job import JOBS, read_job
from parallel_et.models import MODELS

NAMES = [name for name in MODELS.names() if name not in MODELS.aliases]


def written(place, *args):
    done = call("job", *args, cwd=place)
    assert done.returncode == 0, done.stderr
    (place / "job.toml").write_text(done.stdout)
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_first_job_of_every_model_runs_as_it_stands(tmp_path, name):
    text = written(tmp_path, name)
    assert f'\nname = "{name}"' in text
    assert max(map(len, text.splitlines())) < 140
    job = read_job(str(tmp_path / "job.toml"))
    assert job.anneal.iterations >= 30
    settings = ("--set", "anneal.iterations=2", "--set", "data.points=100", "--set", "run.picture=false")
    done = call("train", "job.toml", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_first_job_finds_what_is_there(tmp_path):
    written(tmp_path, "linca")
    done = call("train", "job.toml", cwd=tmp_path)
    assert "all 10 causes found" in done.stdout
    assert (tmp_path / "runs/job/fields.png").exists()


def test_a_first_job_for_data_of_ones_own(tmp_path):
    np.save(tmp_path / "own.npy", np.random.default_rng(1).normal(size=(60, 7)))
    text = written(tmp_path, "bsc", "own.npy")
    assert "# own.npy contains 60 points of 7 dimensions.\n" in text
    job = read_job(str(tmp_path / "job.toml"))
    assert (job.data.source, job.model.causes, job.inference.candidates, job.inference.gamma) == ("own.npy", 6, 6, 4)
    assert call("train", "job.toml", "--set", "anneal.iterations=2", cwd=tmp_path).returncode == 0


def test_without_a_name_all_are_listed_and_those_of_the_package_are_printed_too(tmp_path):
    listed = [line.split()[0] for line in call("job", cwd=tmp_path).stdout.splitlines() if line.startswith("  ")]
    assert listed == [*NAMES, *sorted(path.stem for path in JOBS.glob("*.toml"))]
    assert written(tmp_path, "denoise") == (JOBS / "denoise.toml").read_text()


def test_mistakes_are_told_in_a_line(tmp_path):
    for args, words in (
        (("linka",), "found linka, did you mean linca?"),
        (("demo", "own.npy"), "job: expected DATA with a model only, found own.npy with demo"),
        (("linca", "none.npy"), "none.npy: expected"),
    ):
        done = call("job", *args, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert words in done.stderr
