"""The quality Q_n of ET eq. 21, as written by infer and as drawn in a report (fig. 4C)."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import brute
import h5py
import numpy as np
import pytest
from matplotlib.image import imread
from problems import job_table, problem_of, random_data, random_params

from parallel_et import fit
from parallel_et.cli import infer
from parallel_et.control.progress import Reporter
from parallel_et.data.base import ArrayRows
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import read_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports import plots
from parallel_et.reports.chapters import draw_quality
from parallel_et.reports.pictures import encode_png
from parallel_et.reports.quality import choose_points, compute_quality
from parallel_et.reports.run_data import read_run_data
from parallel_et.runs.directory import RunDirectory

NOISY = Path(__file__).parent.parent.parent / "jobs/et-2010/nmf-bars-noisy.toml"
MODELS = ["linca", "nmf", "mca"]
SILENT = Reporter(False, True)


def inference_of(name, params, **options):
    D, H = params["W"].shape
    problem, _ = problem_of(job_table({"name": name, "causes": H}, options), np.ones((2, D)))
    return Inference(problem.model, problem.scheme, params, ["quality"])


def share(name, W, sigma, pi, y, count, gamma, singletons):
    """Compute Q_n by definition: the joint summed over K_n, divided by the joint summed over all states."""
    states = brute.considered(name, W, sigma, pi, y, count, gamma, singletons)
    some, every = (
        brute.posterior(name, W, sigma, pi, y, which, 1.0)[1] for which in (states, brute.all_states(W.shape[1]))
    )
    return np.exp(some - every)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count, gamma, singletons", [(3, 2, False), (2, 1, True), (6, 3, False)])
def test_the_quality_is_the_fraction_of_the_considered_states_in_the_joint(name, count, gamma, singletons):
    params = random_params(name, 7, 6, seed=gamma)
    Y = random_data(name, 21, params, seed=count).astype(np.float32)
    found = inference_of(name, params, candidates=count, gamma=gamma, singletons=singletons).block(Y)
    assert set(found) == {"quality"}
    sigma, pi = float(params["sigma"]), float(params["pi"])
    expected = [share(name, params["W"], sigma, pi, y, count, gamma, singletons) for y in Y.astype(float)]
    np.testing.assert_allclose(found["quality"], expected, rtol=1e-9, atol=1e-300)
    assert min(expected) < 0.9  # these points put it to the test


@pytest.mark.parametrize("name", MODELS)
def test_exact_inference_has_quality_one(name):
    params = random_params(name, 7, 6, seed=1)
    found = inference_of(name, params, scheme="exact").block(random_data(name, 21, params, seed=2))
    np.testing.assert_allclose(found["quality"], 1.0, rtol=1e-12)
    assert found["quality"].max() <= 1.0


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    """The run of fig. 4C."""
    place = tmp_path_factory.mktemp("quality") / "bars"
    job = read_job(str(NOISY), ["run.snapshots=25", "anneal.iterations=99"])
    fit(job.resolved(), output=str(place))
    return place


@pytest.fixture(scope="module")
def study(bars):
    return read_run_data(RunDirectory(str(bars)), None, SILENT, {})


def test_during_training_the_quality_of_points_with_few_causes_approaches_one_and_that_of_others_zero(study):
    course, source = study.quality, study.sample.source
    assert course.iterations.tolist() == [25, 50, 75, 99]
    assert course.quality.shape == (4, 40)
    rows, few = choose_points(source, study.sample.rows, 3, 1)
    assert few.tolist() == course.within_gamma.tolist() == [True] * 20 + [False] * 20
    active = np.concatenate([s.sum(1) for _, _, s in source.draw_groups(0, 500)])
    assert (active[rows[:20]] <= 3).all()
    assert (active[rows[20:]] > 3).all()
    assert len(set(rows.tolist())) == 40
    for moment, W in ((0, study.result.snapshots["W"][0]), (3, study.result.W)):
        for n in (0, 1, 20, 21):
            y = source.read(rows[n], rows[n] + 1)[0, :25]
            expected = share("nmf", W, 2.0, 0.2, y, 5, 3, study.scheme.singletons)
            assert course.quality[moment, n] == pytest.approx(expected, rel=1e-8, abs=1e-300)
    assert course.quality[-1, :20].mean() > 0.95
    assert course.quality[-1, 20:].mean() < 0.05


def test_the_picture_colours_points_by_their_number_of_causes_if_known(study):
    def greenish(course):
        image = imread(BytesIO(encode_png(plots.plot_quality(course, 3))))
        return bool((image[..., 1] - image[..., 0] > 0.3).any())

    assert greenish(study.quality)
    assert not greenish(replace(study.quality, within_gamma=None))
    few = replace(study.quality, within_gamma=np.ones(40, bool))
    assert "for points with at most 3 true causes." in draw_quality(few, 3).caption


def test_without_true_states_any_points_are_shown(study):
    source = ArrayRows(study.sample.source.read(0, 500)[:, :25])
    course = compute_quality(study.model, study.scheme, study.result, source, study.sample.rows, SILENT)
    assert course.within_gamma is None
    assert course.quality.shape == (4, 40)


def test_without_snapshots_or_truncation_or_with_many_causes_there_is_no_quality(study):
    model, scheme, result, sample = study.model, study.scheme, study.result, study.sample
    exact = problem_of(job_table({"name": "nmf", "causes": 10}, {"scheme": "exact"}), np.ones((2, 25)))[0].scheme
    wide = problem_of(job_table({"name": "nmf", "causes": 17}, {"candidates": 5, "gamma": 3}), np.ones((2, 25)))[0]
    for args in ((model, scheme, replace(result, snapshots={})), (model, exact, result), (wide.model, scheme, result)):
        assert compute_quality(*args, sample.source, sample.rows, SILENT) is None


def test_too_many_causes_are_refused_in_one_line(tmp_path):
    rows = np.random.default_rng(1).random((30, 25))
    np.save(tmp_path / "data.npy", rows)
    job = {
        "model": {"name": "nmf", "causes": 21},
        "data": {"source": str(tmp_path / "data.npy")},
        "inference": {"candidates": 2, "gamma": 1},
        "anneal": {"iterations": 1},
    }
    fit(job, output=str(tmp_path / "run"))
    call = [str(tmp_path / "run"), "job", "--what", "means,quality", "--output", str(tmp_path / "q.h5")]
    with pytest.raises(UserError, match=r"^quality: expected model.causes of at most 1048576 states .*, found 21$"):
        infer.main(Ranks(), call)
    assert not list(tmp_path.glob("q.h5*"))


@pytest.mark.mpi
def test_infer_writes_the_same_quality_on_any_number_of_ranks(tmp_path_factory, monkeypatch):
    ranks = Ranks()
    monkeypatch.chdir(ranks.from_root(lambda: tmp_path_factory.mktemp("ranks")))
    fit(read_job(str(NOISY), ["anneal.iterations=5"]).resolved(), output="run")
    call = ["run", "job", "--what", "quality,evidence", "--quiet", "--output"]
    assert infer.main(ranks, [*call, "all.h5"]) == 0
    assert ranks.run_on_root(lambda root: infer.main(root, [*call, "one.h5"])) == 0

    def read(name):
        with h5py.File(name) as file:
            return file["quality"][()]

    assert ranks.from_root(lambda: read("all.h5").tobytes() == read("one.h5").tobytes())
    quality = ranks.from_root(lambda: read("one.h5"))
    assert quality.shape == (500,)
    assert 0 <= quality.min() <= quality.max() <= 1
