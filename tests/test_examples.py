"""All examples at small size. The example of the bars is in test_library.py."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import launch
from PIL import Image
from scipy.io import wavfile

from parallel_et import load

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ("--points", 300, "--iterations", 6)


def example(name, *args, ranks=None, cwd):
    start = ("-m", "mpi4py") if ranks else ()
    done = launch(ranks, *start, EXAMPLES / name, *args, cwd=cwd, MPLBACKEND="agg")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def is_picture(path):
    with Image.open(path) as image:
        return min(image.size) > 100 and len(np.unique(np.asarray(image))) > 5


@pytest.fixture(scope="module")
def grass(tmp_path_factory):
    place = tmp_path_factory.mktemp("grass")
    assert "fields: grass/fields.png" in example("grass.py", *SMALL, "--causes", 8, cwd=place)
    return place / "grass"


def test_grass_is_cut_into_patches_and_learned(grass):
    assert is_picture(grass / "fields.png")
    with h5py.File(grass / "grass.h5") as file:
        assert file["patches"].shape == (300, 10, 10)
    assert load(grass / "run").W.shape == (100, 8)


def test_a_run_is_read_without_the_package(grass, tmp_path):
    said = example("look.py", grass / "run", cwd=tmp_path)
    assert "N=300 D=100 H=8" in said
    assert is_picture(tmp_path / "look-fields.png")
    assert is_picture(tmp_path / "look-course.png")
    assert "parallel_et" not in (EXAMPLES / "look.py").read_text()
    (tmp_path / "going/checkpoints").mkdir(parents=True)
    (last,) = (grass / "run/checkpoints").glob("*.h5")
    (tmp_path / "going/checkpoints/000006.h5").write_bytes(last.read_bytes())
    example("look.py", "going", "--shape", 100, "--output", "going", cwd=tmp_path)
    assert is_picture(tmp_path / "going/look-fields.png")


@pytest.mark.parametrize("ranks", [None, 2])
def test_minibatches_are_compared_with_full_em(ranks, tmp_path):
    small = ("--points", 4000, "--causes", 12, "--dims", 10, "--batch", 200, "--passes", 15)
    said = example("minibatches.py", *small, ranks=ranks, cwd=tmp_path).splitlines()
    assert re.fullmatch(r"full EM: free energy -\d+\.\d{4} after 15 passes, \d+ s", said[0])
    assert re.fullmatch(r"minibatches: free energy -\d+\.\d{4} after 3 passes, \d+ s", said[1])


@pytest.mark.parametrize("made_up", [True, False])
def test_sound_is_learned_from_chirps_or_a_wave_file(made_up, tmp_path):
    if not made_up:
        noise = np.random.default_rng(1).normal(0, 1000, (4000, 2)).astype(np.int16)
        wavfile.write(tmp_path / "two channels.wav", 4000, noise)
    example("sound.py", *([] if made_up else ["two channels.wav"]), *SMALL, "--causes", 10, cwd=tmp_path)
    assert is_picture(tmp_path / "sound/fields.png")
    W = load(tmp_path / "sound/run").W
    assert W.shape == (100 if made_up else 50, 10)
    assert 0 < np.abs(W).max() < 10


def test_stuck_chains_are_compared_with_exact_sums(tmp_path):
    said = example("sampled_pi.py", "--points", 100, cwd=tmp_path)
    pi = [float(found) for found in re.findall(r": pi = (0\.\d{4})$", said, re.MULTILINE)]
    assert len(pi) == 5
    assert abs(pi[4] - pi[0]) < 2e-3  # by joint weights
    assert max(pi) - min(pi) < 1e-2


def test_a_search_finds_the_number_of_causes(tmp_path):
    said = example("estimator.py", cwd=tmp_path)
    assert "best: 4\n" in said
    assert len(re.findall(r"^\d causes: ", said, re.MULTILINE)) == 5


def test_occluding_bars_are_compared_with_nmf_and_dictionary_learning(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    import why

    monkeypatch.setattr(why, "POINTS", 100)
    monkeypatch.setattr("sys.argv", ["why.py", "--output", str(tmp_path / "why.png")])
    why.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [*why.METHODS]
    assert all(
        re.search(r": \d+\.\d of 10 bars found, all bars in [01] of 1 data sets, \d+\.\d% of their", line)
        for line in lines
    )
    assert is_picture(tmp_path / "why.png")
