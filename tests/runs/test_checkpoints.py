"""Point states of a scheme in checkpoints, with resumption on any number of ranks."""

import os
import shutil
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import ended, learned, paused, ranks_of, start, train, wait_for

from parallel_et.kernels import fixed
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.runs.checkpoints import digest

HERE = Path(__file__).parents[1] / "support"
JOB = """
[model]
name = "linca"
causes = 6
learn = ["W", "sigma"]
[data]
source = "data.npy"
[inference]
file = "random_temperature.py"
candidates = 4
gamma = 2
[anneal]
iterations = {iterations}
cut = {{ schedule = 0.5, share = 0.9 }}
[run]
checkpoint = {{ every = 10, keep = 2 }}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data and a custom scheme that has point states."""
    place = tmp_path_factory.mktemp("kept")
    shutil.copy(HERE / "random_temperature.py", place)
    np.save(place / "data.npy", np.random.default_rng(1).normal(size=(1000, 12)))
    return place


@pytest.fixture(scope="module")
def whole(place):
    (place / "whole.toml").write_text(JOB.format(iterations=60))
    done = train(None, "whole.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    return learned(place / "runs/whole/result.h5")


def files(place):
    return sorted(path.name for path in (place / "runs/job/checkpoints").iterdir())


@pytest.fixture(scope="module")
def killed(place, tmp_path_factory):
    """A run that was killed twice, each time after a checkpoint."""
    here, place = place, tmp_path_factory.mktemp("killed")
    for name in ("data.npy", "random_temperature.py"):
        shutil.copy(here / name, place)
    (place / "job.toml").write_text(JOB.format(iterations=60))
    pause = paused(place, "runs.checkpoints", "Checkpoints.save")
    for ranks in (3, 2):
        process = start(ranks, "job.toml", cwd=place, **pause)
        wait_for((place / "here").exists, process)
        os.kill(ranks_of(place)[ranks - 1], signal.SIGKILL)
        ended(process, place)
        (place / "here").unlink()
    return place


@pytest.fixture
def job(killed, tmp_path):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_what_is_kept_survives_kills_on_other_numbers_of_ranks(whole, job):
    done = train(4, "job.toml", cwd=job)
    assert done.returncode == 0, done.stderr
    assert "resumes from 000020.h5" in done.stdout
    assert learned(job / "runs/job/result.h5") == whole
    assert files(job) == ["000050.h5", "000050.points.h5", "000060.h5", "000060.points.h5"]
    with h5py.File(job / "runs/job/checkpoints/000060.points.h5") as file:
        assert file["mood"].shape == (1000,)
        assert (file["visits"][:, 1] == 60).all()


@pytest.mark.parametrize("how", ["a flipped byte", "cut off", "gone"])
def test_damage_to_what_is_kept_is_noticed(whole, job, how):
    newest = job / "runs/job/checkpoints/000020.points.h5"
    content = bytearray(newest.read_bytes())
    if how == "gone":
        newest.unlink()
    elif how == "cut off":
        newest.write_bytes(content[: len(content) // 2])
    else:
        with h5py.File(newest) as file:
            content[file["visits"].id.get_offset() + 2500] ^= 1
        newest.write_bytes(content)
    done = train(3 if how == "gone" else None, "job.toml", cwd=job)
    assert done.returncode == 0, done.stderr
    assert "expected its file of point states, found it damaged or missing" in done.stdout
    assert "resumes from 000010.h5" in done.stdout
    assert learned(job / "runs/job/result.h5") == whole


VALUES = 'name = "gsc"\neach = ["pi", "mu", "psi"]\ncauses = 6\nlearn = ["W", "sigma", "pi", "mu", "psi"]'
PLACES = 'name = "inveca"\ncauses = 6\nsize = 2\nrows = 3\nchannels = 1\nlearn = ["W", "T", "sigma"]'
GP = '\nselection = "gp"\ngp = {rank = 40, every = 4}'


@pytest.mark.parametrize(
    "batch, model, selection",
    [(None, PLACES, GP), (150, None, ""), (None, VALUES, "")],
    ids=["places, a learned selection", "batches", "values"],
)
def test_kept_states_survive_a_kill_other_ranks_a_cut_and_streaming(batch, model, selection, place, tmp_path):
    search = 'scheme = "tv"\nstates = 7\ngamma = 4\npropose = {select = 3, flip = 3, marginals = 2}' + selection
    text = JOB.format(iterations=30).replace('file = "random_temperature.py"\ncandidates = 4\ngamma = 2', search)
    text = text.replace('name = "linca"\ncauses = 6\nlearn = ["W", "sigma"]', model) if model else text
    text = text if batch is None else text.replace("[anneal]", f"[anneal]\nbatch = {batch}")  # 7 or more a pass
    shutil.copy(place / "data.npy", tmp_path)
    (tmp_path / "job.toml").write_text(text)
    done = train(None, "job.toml", "--output", "runs/whole", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "job.toml").write_text(text.replace('"data.npy"', '"data.npy"\nmemory = 20000'))
    process = start(3, "job.toml", cwd=tmp_path, **paused(tmp_path, "runs.checkpoints", "Checkpoints.save"))
    wait_for((tmp_path / "here").exists, process)
    os.kill(ranks_of(tmp_path)[1], signal.SIGKILL)
    ended(process, tmp_path)
    done = train(2, "job.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumes from 000010.h5" in done.stdout
    assert learned(tmp_path / "runs/job/result.h5") == learned(tmp_path / "runs/whole/result.h5")
    with h5py.File(tmp_path / "runs/job/checkpoints/000030.points.h5") as file:
        assert file["states"].dtype == np.int16


@pytest.mark.filterwarnings("error")
def test_the_digest_of_many_rows_is_a_sum_of_64_bits_without_a_warning():
    kept = {"states": np.random.default_rng(1).integers(0, 99, (10_000, 3, 2), np.uint16), "marks": np.ones(10_000)}
    shard = Shard.of(10_000, 100, 0, 1)
    sums = []
    for name in sorted(kept):
        raw = kept[name].reshape(10_000, -1).view(np.uint8)
        words = np.pad(raw, [(0, 0), (0, -raw.shape[1] % 8)]).view(np.uint64)
        sums.append(sum(int(fixed.digest(words[n : n + 1], n)) for n in range(10_000)) % 2**64)
    assert digest(kept, shard, Ranks.self_only()) == "".join(f"{each:016x}" for each in sums)
