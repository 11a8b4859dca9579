"""Every error in a job has one line: the key, the expected value, the value found."""

import copy
import pickle

import pytest

from parallel_et.errors import UserError
from parallel_et.job.job import check_job, differing_keys, read_job
from parallel_et.models import MODELS

GOOD = {
    "model": {"name": "mca", "causes": 10, "sigma": 2.0, "pi": 0.2, "init": {"W": {"mean": 4.0, "std": 1.3}}},
    "data": {"source": "bars", "points": 500, "noise": {"sigma": 2.0}},
    "inference": {"candidates": 5, "gamma": 3},
    "anneal": {"iterations": 10, "temperature": [[0.1, 13.0], [0.8, 1.05]], "noise": {"W": 0.05}},
    "run": {"seed": 3},
}


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


MISTAKES = [
    ("model.casues", 10, "model.casues: unknown key, did you mean causes?"),
    (
        "model.name",
        "mac",
        f'model.name: expected {" or ".join(MODELS.names())}, found "mac"',
    ),
    ("model.causes", "ten", 'model.causes: expected an integer, found "ten"'),
    ("model.causes", 0, "model.causes: expected a value of 1 or more, found 0"),
    ("model.pi", 0.0, "model.pi: expected a value of 1e-09 or more, found 0.0"),
    ("model.pi", 1.0, "model.pi: expected a value of 0.999999999 or less, found 1.0"),
    ("model.sigma", -1.0, "model.sigma: expected a value of 1e-50 or more, found -1.0"),
    ("model.sigma", True, "model.sigma: expected a number, found true"),
    ("model.learn", ["W", "rho"], "model.learn.1: expected 'W', 'sigma' or 'pi', found \"rho\""),
    (
        "model.mstep",
        "clamp",
        "model.mstep: unknown key; known are name, file, sha256, causes, noise, sigma, pi, learn",
    ),
    ("model.init.W.mena", 4.0, "model.init.W.mena: unknown key, did you mean mean?"),
    (
        "model.init.W",
        "W.npy",
        "model.init.W: expected a number; a table with mean and std, low and high, or file and dataset; or, ",
    ),
    ("model.init.W", {"fil": "W.h5", "file": "W.h5"}, "model.init.W.fil: unknown key, did you mean file?"),
    ("model.sigma", float("inf"), "model.sigma: expected a finite number, found inf"),
    ("model.sigma", 1e-200, "model.sigma: expected a value of 1e-50 or more, found 1e-200"),
    ("anneal.rho", 0.5, "anneal.rho: expected a schedule with values of 1 or more, found 0.5"),
    ("data.width", 1.0, "data.width: expected whole numbers"),
    (
        "data.at_least",
        10,
        "data.at_least: expected a number of bars that at least one point in 1000 contains, found 10",
    ),
    ("data.seed", 10**23, "data.seed: expected a value below 9.22337203685e+18"),
    ("model.init.W.std", -1.0, "model.init.W.std: expected a value of 0 or more, found -1.0"),
    ("inference.gamma", 6, "inference.gamma: expected at most inference.candidates = 5, found 6"),
    ("inference.candidates", 11, "inference.candidates: expected at most model.causes = 10, found 11"),
    ("inference.scheme", "etc", 'inference.scheme: expected et or exact or hard or sample or tv, found "etc"'),
    ("anneal.temperature", [], "anneal.temperature: expected a number, or pairs [position, value] with rising"),
    ("anneal.temperature", [[0.5, 2.0], [0.1, 1.0]], "anneal.temperature: expected a number, or pairs"),
    (
        "anneal.temperature",
        0.0,
        "anneal.temperature: expected a schedule with temperatures from 0.001 to 1e+09, found 0.0",
    ),
    ("anneal.temperature", {"start": 2.0, "hlod": 3}, "anneal.temperature.hlod: unknown key, did you mean hold?"),
    ("anneal.temperature", {"end": 2.0}, "anneal.temperature.start: expected a value, found none"),
    (
        "anneal.temperature",
        {"start": 2.0, "steps": 0},
        "anneal.temperature.steps: expected a value of 1 or more, found 0",
    ),
    (
        "anneal.temperature",
        {"start": 2.0, "end": 3.0},
        "anneal.temperature: expected an end that is not above the start",
    ),
    ("anneal.batch", 0, "anneal.batch: expected a value of 1 or more, found 0"),
    ("anneal.batch", 1.5, "anneal.batch: expected an integer, found 1.5"),
    ("anneal.step.power", 1.5, "anneal.step.power: expected a value of 1 or less, found 1.5"),
    ("anneal.step.delay", 0.0, "anneal.step.delay: expected a value of 0.001 or more, found 0.0"),
    ("anneal.rho", "large", "anneal.rho: expected a number, or pairs"),
    ("anneal.roh", 3.0, "anneal.roh: unknown key, did you mean rho?"),
    ("anneal.noise.V", 0.1, "anneal.noise.V: unknown key; known are W, sigma, pi"),
    ("anneal.cut.schedule", 2.0, "anneal.cut.schedule: expected a schedule with values from 0"),
    ("anneal.iterations", 0, "anneal.iterations: expected a value of 1 or more, found 0"),
    (
        "data.source",
        "bras",
        'data.source: expected "bars", "clusters", "mixed", "model", "objects", "planted", "strokes", "file.npy" or '
        '"file.h5:/dataset", found "bras"',
    ),
    ("data.width", 7, "data.width: expected whole numbers of 1 and more that fit on the grid of 5, found 7"),
    ("data.probability", [0.1, 0.2], "data.probability: expected a number in (0, 1), or one for each of the 10 bars"),
    (
        "data.memory",
        "8 Gib",
        'data.memory: expected a size such as "8 GiB" or "500 MB", or a number of bytes, found "8 Gib"',
    ),
    ("data.memory", 0, 'data.memory: expected a size such as "8 GiB" or "500 MB", or a number of bytes, found 0'),
    ("data.memory", True, 'data.memory: expected a size such as "8 GiB" or "500 MB", or a number of bytes, found true'),
    ("model.causes", 10**20, "model.causes: expected a value of 1e+06 or less, found 100000000000000000000"),
    ("model.causes", 10**400, "model.causes: expected a number of magnitude 1e+50 at most, found 1000"),
    ("model.causes", 1 << 20_000, "model.causes: expected a number of magnitude 1e+50 at most, found int …"),
    ("model.pi", 10**400, "model.pi: expected a number of magnitude 1e+50 at most, found 1000"),
    ("model.pi", -(10**400), "model.pi: expected a number of magnitude 1e+50 at most, found -1000"),
    ("model.init.W.std", 1e200, "model.init.W.std: expected a number of magnitude 1e+50 at most, found 1e+200"),
    ("model.init.W.mean", -1e51, "model.init.W.mean: expected a number of magnitude 1e+50 at most, found -1e+51"),
    (
        "model.name",
        "a\nb",
        f'model.name: expected {" or ".join(MODELS.names())}, found "a\\nb"',
    ),
    ("model.a\nb", 1, "model.a\\nb: unknown key"),
    ("model.init.W", {"file": "W\x1b[2J.h5"}, "model.init.W.file: expected a text of at most 4096 characters that can"),
    ("model.init.W", {"file": "W" * 5000}, "model.init.W.file: expected a text of at most 4096 characters that can"),
    (f"model.{'x' * 9999}", 1, f"model.{'x' * 59}…: unknown key"),
    ("x" * 9999, {}, f"{'x' * 59}…: unknown section"),
    ("anneal.noise.W", 1e300, "anneal.noise.W: expected a number of magnitude 1e+50 at most, found 1e+300"),
    ("anneal.noise.W", [[0, 1e300]], "anneal.noise.W: expected a number, or pairs"),
    ("anneal.noise.W", [[10**400, 1.0]], "anneal.noise.W: expected a number, or pairs"),
    ("anneal.temperature", 1e-300, "anneal.temperature: expected a schedule with temperatures from 0.001 to 1e+09"),
    ("anneal.iterations", 10**20, "anneal.iterations: expected a value of 1e+12 or less, found 100000000000000000000"),
    ("anneal.rho", 1e300, "anneal.rho: expected a number of magnitude 1e+50 at most, found 1e+300"),
    ("inference.gamma", 10**9, "inference.gamma: expected a value of 20 or less, found 1000000000"),
    ("inference.candidates", 10**20, "inference.candidates: expected a value of 1e+12 or less, found 1000000000"),
    ("data.points", 10**20, "data.points: expected a value of 1e+12 or less, found 100000000000000000000"),
    ("data.grid", 10**6, "data.grid: expected a value of 10000 or less, found 1000000"),
    ("data.grid", 6000, "data.grid: expected at most 10000 bars, found 12000"),
    ("data.value", 1e200, "data.value: expected a number of magnitude 1e+50 at most, found 1e+200"),
    ("data.noise.sigma", 1e300, "data.noise.sigma: expected a number of magnitude 1e+50 at most, found 1e+300"),
    ("data.probability", 1e300, "data.probability: expected a number of magnitude 1e+50 at most, found 1e+300"),
    ("data.width", [10**400], "data.width: expected a number or a list of numbers, found [1000"),
    ("data.memory", 1e300, "data.memory: expected a number of magnitude 1e+50 at most, found 1e+300"),
    ("run.checkpoint.every", "9" * 400 + " min", "run.checkpoint.every: expected a time such as"),
    ("run.checkpoint.every", "9" * 400 + ":00", "run.checkpoint.every: expected a time such as"),
    ("run.checkpoint.every", "99999999-0:00", "run.checkpoint.every: expected a time such as"),
    ("run.checkpoint.every", 10**20, "run.checkpoint.every: expected a time such as"),
    ("run.seed", nested(100_000), "run.seed: expected an integer, found list …"),
    ("run.seed", -1, "run.seed: expected a value of 0 or more, found -1"),
    ("rnu.seed", 1, "rnu: unknown section, did you mean run?"),
    ("run", 5, "run: expected a table, found 5"),
]


def changed(place, value):
    table = copy.deepcopy(GOOD)
    at = table
    *parents, key = place.split(".")
    for parent in parents:
        at = at.setdefault(parent, {})
    at[key] = value
    return table


@pytest.mark.parametrize("place, value, line", MISTAKES, ids=[line[:60] for _, _, line in MISTAKES])
def test_a_mistake_is_one_line_that_helps(place, value, line):
    with pytest.raises(UserError) as caught:
        check_job(changed(place, value), where="job.toml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"job.toml: {line}")


def test_counts_of_poisson_noise_are_numbers():
    table = changed("data.noise.kind", "poisson")
    check_job(table)
    table["data"]["value"] = 1e17
    with pytest.raises(UserError, match=r"data.value: expected at most 1e\+15 in all bars together"):
        check_job(table)


def test_a_zero_below_zero_is_zero():
    assert str(check_job(changed("model.init.W.std", -0.0)).model.init.W.std) == "0.0"


def test_of_very_many_mistakes_the_first_are_told():
    with pytest.raises(UserError) as caught:
        check_job({**GOOD, "run": {f"key{i}": 1 for i in range(50_000)}, **{f"section{i}": {} for i in range(50_000)}})
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "job: and more errors"


TEXTS = {
    "lists in lists": (b"a = " + b"[" * 500, "expected a job file, found tables or lists nested too deeply"),
    "tables in tables": (b"a = " + b"{a=" * 900, "expected a job file, found tables or lists nested too deeply"),
    "too many digits": (b"a = " + b"9" * 5000, "expected a job file, found something else (Exceeds the limit"),
    "too many bytes": (b"# comment\n" * 200_000, "expected a job file of at most 1048576 bytes, found more"),
    "not UTF-8": (b"\xff\xfe", "expected a job file, found something else ('utf-8' codec can't decode"),
    "a key of control characters": (b'"a\\u001bb" = 1', "a\\x1bb: unknown section"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_no_job_is_told_of_in_one_line(tmp_path, name):
    path = tmp_path / "job.toml"
    path.write_bytes(TEXTS[name][0])
    with pytest.raises(UserError) as caught:
        read_job(str(path))
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"{path}: {TEXTS[name][1]}")
    assert first.isprintable()
    assert len(first) < 500


def test_a_device_without_end_is_no_job():
    with pytest.raises(UserError, match="/dev/zero: expected a job file of at most"):
        read_job("/dev/zero")


def test_a_misspelt_key_that_is_needed_is_one_mistake():
    table = copy.deepcopy(GOOD)
    table["model"]["casues"] = table["model"].pop("causes")
    table["inference"].pop("candidates")
    with pytest.raises(UserError) as caught:
        check_job(table, where="job.toml")
    assert str(caught.value).splitlines() == [
        "job.toml: model.casues: unknown key, did you mean causes?",
        "job.toml: inference.candidates: expected a value, found none",
    ]


def test_all_mistakes_are_told_at_once():
    table = copy.deepcopy(GOOD)
    for place, value in [("model", "casues"), ("data", "pionts"), ("inference", "gama"), ("anneal", "teperature")]:
        table[place][value] = 1
    with pytest.raises(UserError) as caught:
        check_job(table)
    assert len(str(caught.value).splitlines()) == 4


def test_a_mistake_in_one_place_hides_none_in_another():
    table = changed("model.name", "mcaa") | {"inference": {"candidates": 50, "gamma": 3}}
    table["model"]["casues"] = 1
    table["anneal"]["temperatur"] = 1.0
    with pytest.raises(UserError) as caught:
        check_job(table, where="j")
    assert [line.split(":")[1].strip() for line in str(caught.value).splitlines()] == [
        "model.name",
        "model.casues",
        "anneal.temperatur",
        "inference.candidates",
    ]


def test_a_job_travels_and_resolves_to_itself():
    job = check_job(GOOD, "bars")
    again = pickle.loads(pickle.dumps(job))
    assert again.resolved() == job.resolved()
    assert again.name == "bars"
    assert check_job(job.resolved()).toml() == job.toml()


def test_differing_keys_are_listed():
    other = check_job(changed("anneal.temperature", 2.0)).resolved()
    assert differing_keys(check_job(GOOD).resolved(), other) == [
        "anneal.temperature: [[0.1, 13.0], [0.8, 1.05]] there, 2.0 here"
    ]


def test_settings_of_the_command_line_win(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(check_job(GOOD).toml())
    job = read_job(str(path), ["run.seed=9", "anneal.temperature=[[0, 3.0], [1, 1.0]]", "model.name=nmf"])
    assert (job.run.seed, job.model.name, job.anneal.temperature) == (9, "nmf", [[0.0, 3.0], [1.0, 1.0]])
    deep, digits = "[" * 999, "9" * 5000
    for bad in ("seed=3", "run.seed", "run.seed.x=3", f"run.seed={deep}", f"run.seed={digits}", "x" * 9999, "a\nb"):
        with pytest.raises(UserError, match="--set") as caught:
            read_job(str(path), [bad])
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200


def test_every_shipped_job_is_valid():
    from pathlib import Path

    jobs = {*(Path(__file__).parent.parent.parent / "jobs").rglob("*.toml")}
    jobs = {path for path in jobs if path.name != "table.toml"}
    assert len(jobs) >= 14
    for path in jobs:
        read_job(str(path))


@pytest.mark.parametrize("name", [".toml", "..toml", "...toml"])
def test_a_job_file_without_a_name_has_no_run(name, tmp_path):
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=r"expected a file name before \.toml, the name of its run"):
        read_job(str(tmp_path / name))
