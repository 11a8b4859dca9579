"""User-defined models and schemes: from a file, a package or a script; and which code is executed."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol, runtime_checkable

import h5py
import numpy as np
import pytest
from launch import call, learned, train
from mpi4py import MPI
from problems import job_table

from parallel_et import fit, load
from parallel_et.core.model import BlockView
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.models import MODELS, PI, Model, Param, Statistic
from parallel_et.models.components import linear
from parallel_et.models.linca import LinCA, LinCAView
from parallel_et.parallel.linear_algebra import LinearAlgebra
from parallel_et.schemes import SCHEMES
from parallel_et.schemes.et import ETOptions, ExpectationTruncation

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
JOB = """
[model]
file = "own_model.py"
causes = 10
pi = 0.2
[data]
source = "bars"
points = {points}
value = 8.0
noise = {{ kind = "poisson" }}
[inference]
candidates = 6
gamma = 3
[anneal]
iterations = {iterations}
temperature = [[0.1, 12.0], [0.8, 1.0]]
noise.W = 0.05
[run]
checkpoint = {{ every = 5 }}
"""
BARS = {"source": "bars", "points": 40}


@pytest.fixture(autouse=True)
def empty_registries(monkeypatch):
    """Registrations of a test, which end with the test."""
    for registry in (MODELS, SCHEMES):
        monkeypatch.setattr(registry, "_own", {})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("own")
    shutil.copy(EXAMPLES / "own_model.py", place)
    (place / "job.toml").write_text(JOB.format(points=500, iterations=30))
    (place / "first.toml").write_text(JOB.format(points=500, iterations=30))
    done = train(2, "job.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


def test_a_model_of_a_file_learns_the_bars_the_same_on_any_number_of_ranks(place):
    done = call("train", "first.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert learned(place / "runs/job/result.h5") == learned(place / "runs/first/result.h5")
    assert int(done.stdout.partition(" causes found")[0].split()[-1]) >= 8 or "all 10 causes found" in done.stdout


def test_it_is_resumed_only_with_the_same_file(place, tmp_path):
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    (tmp_path / "runs/job/result.h5").unlink()
    for newest in sorted((tmp_path / "runs/job/checkpoints").glob("*.h5"))[1:]:
        newest.unlink()
    done = call("train", "job.toml", cwd=tmp_path)
    assert "resumes from 0000" in done.stdout
    assert learned(tmp_path / "runs/job/result.h5") == learned(place / "runs/job/result.h5")
    (tmp_path / "own_model.py").write_text((tmp_path / "own_model.py").read_text() + "\n")
    done = call("train", "job.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "holds a run of another job" in done.stderr
    assert "model.sha256" in done.stderr


READERS = {
    "infer": ["runs/job", "job", "--output", "posterior.h5"],
    "generate": ["runs/job", "--points", "50"],
    "report": ["runs/job"],
}


@pytest.mark.parametrize("name", READERS)
def test_reading_a_run_executes_only_what_is_named_or_trusted(place, tmp_path, name):
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    for code in (tmp_path / "own_model.py", tmp_path / "runs/job/model.py"):
        code.write_text(f'open("executed", "w")\n{code.read_text()}')
    done = call(name, *READERS[name], cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "own_model.py: expected permission to execute this code, found none" in done.stderr
    for other in (["--trust"], ["--model", "own_model.py"]):  # these are not the same file any more
        done = call(name, *READERS[name], *other, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "expected the file with the digest" in done.stderr
    assert not (tmp_path / "executed").exists()
    shutil.copy(place / "runs/job/model.py", tmp_path / "runs/job/model.py")
    done = call(name, *READERS[name], "--trust", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shutil.copy(place / "own_model.py", tmp_path / "renamed.py")
    fresh = [] if name == "report" else ["--fresh"]
    done = call(name, *READERS[name], *fresh, "--model", "renamed.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "runs/job").W.shape == (25, 10)


def test_inference_with_a_model_of_a_file_has_the_right_shapes(place):
    done = call("infer", "runs/job", "job", "--trust", "--output", "shapes.h5", cwd=place)
    assert done.returncode == 0, done.stderr
    with h5py.File(place / "shapes.h5") as file:
        assert {name: item.shape for name, item in file.items()} == {
            "evidence": (500,),
            "candidates": (500, 6),
            "means": (500, 10),
            "map": (500, 10),
            "map_gamma": (500,),
            "reconstruction": (500, 25),
        }
        assert np.isfinite(file["reconstruction"][()]).all()


def test_trials_of_a_model_of_a_file_count_and_go_on(place):
    short = ("job.toml", "--set", "anneal.iterations=3", "--output", "trials.h5")
    assert "0 of 2 trials" in call("trials", *short, "--count", 2, cwd=place).stdout
    more = call("trials", *short, "--count", 3, cwd=place)
    assert "2 of 3 trials already exist" in more.stdout, more.stderr


FILES = {
    "gone": (None, "m.py: expected a Python file, found No such file or directory"),
    "no Python": ("class", "m.py:1: expected Python that runs, found SyntaxError: "),
    "fails": ("import numpy\n1 / 0", "m.py:2: expected Python that runs, found ZeroDivisionError: division by zero"),
    "no model": ("MODEL = 3", "m.py: expected MODEL = a subclass of Model, found 3"),
    "leaves": ("raise SystemExit(0)", "m.py:1: expected Python that runs, found SystemExit: 0"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_a_model_is_refused_in_one_line(name, tmp_path):
    text, line = FILES[name]
    if text is not None:
        (tmp_path / "m.py").write_text(text)
    (tmp_path / "job.toml").write_text(JOB.format(points=10, iterations=1).replace("own_model", "m"))
    done = call("train", "job.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(line)


def test_a_package_adds_models_and_schemes_by_entry_points(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(
        "from parallel_et.models.linca import LinCA\nfrom parallel_et.schemes.et import ExpectationTruncation\n"
        "class Strange(LinCA): pass\nclass Odd(ExpectationTruncation): pass\n"
    )
    about = tmp_path / "stranger-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[parallel_et.models]\nstrange = stranger:Strange\n[parallel_et.schemes]\nodd = stranger:Odd\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {"strange", "linca", "bsc"} <= set(MODELS.names())
    inference = {"scheme": "odd", "candidates": 3, "gamma": 2}
    result = fit({**job_table({"name": "strange", "causes": 4}, inference), "data": BARS})
    plain = fit({**job_table({"name": "linca", "causes": 4}, {**inference, "scheme": "et"}), "data": BARS})
    assert result.W.tobytes() == plain.W.tobytes()


def test_a_script_registers_its_own():
    class Mine(LinCA):
        pass

    MODELS.register("mine", Mine)
    assert fit({**job_table({"name": "mine", "causes": 4}, {"scheme": "exact"}), "data": BARS}).W.shape == (25, 4)


def test_blocks_are_not_merged_for_subclasses_with_other_methods():
    sizes = []

    class CountingView(LinCAView):
        def __init__(self, evaluator, block, singletons=False):
            sizes.append(len(block))
            super().__init__(evaluator, block, singletons)

    class Counting(LinCA):
        View = CountingView

    class Other(ExpectationTruncation):
        def infer(self, context, block, point_states):
            return super().infer(context, block, point_states)

    class Mixed(LinCA):
        pass

    MODELS.register("counting", Counting)
    table = {**job_table({"name": "counting", "causes": 4}, {"candidates": 3, "gamma": 2}), "data": BARS}
    fit({**table, "run": {"block": 16}})
    assert {16, 8} <= set(sizes)  # of 40 points
    model = LinCA(SimpleNamespace(causes=4, learn=[]), 6)
    options = ETOptions(candidates=3, gamma=2)
    assert ExpectationTruncation(options, model.latents).row_independent
    assert not Mixed.row_independent
    assert not Other(options, model.latents).row_independent


def test_a_large_model_that_is_derived_may_prepare_otherwise_but_not_change_its_sums(monkeypatch):
    monkeypatch.setattr(linear, "DISTRIBUTED_M_STEP_PRODUCTS", 0)

    class Plain(LinCA):
        def evaluator(self, params, settings):
            return super().evaluator(params, settings._replace(algebra=LinearAlgebra()))

    class Greedy(LinCA):
        def maximise(self, stage, params, sums, settings, summary):
            sums["ss"][:] *= 1.1
            return super().maximise(stage, params, sums, settings, summary)

    MODELS.register("plain", Plain)
    MODELS.register("greedy", Greedy)
    table, same, greedy = (
        {**job_table({"name": name, "causes": 4}, {"candidates": 3, "gamma": 2}), "data": BARS}
        for name in ("linca", "plain", "greedy")
    )
    np.testing.assert_allclose(fit(same).W, fit(table).W, rtol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        fit(greedy)


def test_fits_in_threads_of_one_process_do_not_disturb_each_other(monkeypatch):
    monkeypatch.setattr(linear, "DISTRIBUTED_M_STEP_PRODUCTS", 0)
    table = {
        **job_table({"name": "linca", "causes": 8}, {"candidates": 4, "gamma": 2}, {"iterations": 20}),
        "data": BARS,
    }
    jobs = [{**table, "run": {"seed": seed}} for seed in (1, 2, 3, 4)]
    expected = [fit(job, comm=MPI.COMM_SELF).W for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda job: fit(job, comm=MPI.COMM_SELF).W, jobs))
    assert [W.tobytes() for W in found] == [W.tobytes() for W in expected]


def test_an_impossible_pair_of_model_and_scheme_is_refused_with_the_possible_schemes():
    @runtime_checkable
    class Sweeps(Protocol):
        def sweep(self): ...

    class Sweeping(ExpectationTruncation):
        needs = (Sweeps,)

    class DrawingView(LinCAView):
        def sweep(self):
            pass

    class Drawing(LinCA):
        View = DrawingView

    class Without(LinCA):
        View = BlockView

    SCHEMES.register("sweeping", Sweeping)
    MODELS.register("drawing", Drawing)
    MODELS.register("without", Without)
    inference = {"candidates": 2, "gamma": 1, "scheme": "sweeping"}
    with pytest.raises(
        UserError,
        match=r"^job: inference.scheme: expected et or exact or hard or sample or tv for a model whose View is no Sw",
    ):
        check_job(job_table({"name": "linca", "causes": 4}, inference))
    check_job(job_table({"name": "drawing", "causes": 4}, inference))
    with pytest.raises(
        UserError, match="expected no scheme of this version for a model whose View is no EnumeratingView"
    ):
        check_job(job_table({"name": "without", "causes": 4}, {"candidates": 2, "gamma": 1}))


BROKEN = {
    "an unknown parameter": ("maximise", lambda *a: {"V": np.ones(3)}, "maximise: V: expected some of W, pi, found V"),
    "another shape": (
        "maximise",
        lambda *a: {"W": np.ones((4, 9))},
        r"maximise: W: expected the shape \(9, 4\)",
    ),
    "a sum too few": (
        "accumulate",
        lambda *a: {"active": np.ones(4)},
        "accumulate: expected the statistics counts, active",
    ),
    "no usage": (
        "statistics",
        lambda *a: {"x": Statistic(())},
        r"statistics: expected active \(H,\) or ss \(H, H\), or a method",
    ),
    "no number": ("mean", lambda model, params, s: np.full((*s.shape[:-1], 9), np.nan), "expected finite evidence"),
    "an axis": ("params", {"W": Param("DK", "fields"), "pi": PI}, "params: W: expected the axes D or H, found K"),
    "no statistics": ("accumulate", Model.accumulate, "^Broken: expected a method accumulate, found none$"),
    "an old contract": ("sums", lambda *a: {}, r"^Broken: expected a model for version 2 .* sums \(now statistics\)"),
    "no M-step": ("maximise", Model.maximise, "^Broken: expected a method maximise, found none$"),
    "what is learned": ("learns", ("W", "p"), "learns: expected some of W, pi, found p"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_breaks_the_contract_is_refused_in_one_line(name):
    method, broken, line = BROKEN[name]
    own = {}
    exec(compile((EXAMPLES / "own_model.py").read_text(), "own_model.py", "exec"), own)
    members = {method: broken}
    if name == "no usage":
        members |= {"accumulate": lambda *a: {"x": 0.0}, "maximise": lambda *a: {}}
    MODELS.register("broken", type("Broken", (own["MODEL"],), members))
    job = {"model": {"name": "broken", "causes": 4}, "inference": {"scheme": "exact"}, "anneal": {"iterations": 2}}
    with pytest.raises(UserError, match=line):
        fit(job, np.random.default_rng(1).poisson(3.0, (40, 9)))
