"""Shipped jobs with hostile values, keys, bytes and settings."""

import pickle
import tomllib
import warnings
from copy import deepcopy
from datetime import date
from math import isfinite
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import tomli_w

from parallel_et import fit
from parallel_et.core.options import initial_value_of
from parallel_et.core.random import stream
from parallel_et.core.types import Summary
from parallel_et.em.minibatches import Batches
from parallel_et.em.schedule import Schedule
from parallel_et.em.state import EMState
from parallel_et.errors import UserError
from parallel_et.job.job import Job, check_job, read_job
from parallel_et.parallel.communicator import Ranks, shared_error_message
from parallel_et.runs.setup import check_memory, demand_of, model_and_block_size, open_source

SEVERAL_LINES = True
SMALL = 20_000_000
"""Largest bytes, and largest states times dimensions of all points, of an accepted job that is started."""
FITTED = 0.2
"""Fraction of the started jobs that run an iteration."""
HERE = Path(__file__).parent.parent
JOBS = HERE.parents[1] / "jobs"
HOSTILE = [
    *(0, 1, -1, 2, 3, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**11, 10**20, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1.0, 1e-300, 5e-324, 1e50, 1e51, 1e100, 1e154, 1e200, 1.7e308, -1e200, 1e-50, 1e9),
    *(float("nan"), float("inf"), -float("inf"), True, False, "", "W", "nan", "x" * 10_000, "a\nb", "\x00", "\x1b[2J"),
    *("ü∑\u2028", "10 min", "9" * 400 + " min", "9" * 400 + ":00", "99999999-9:00", "8 GiB", "9" * 14 + " TiB", "0 B"),
    *("1." + "9" * 400 + " h", "٣ min", "bars", "model", "x.npy", "x.h5:/a", ":", "data.npy", "../" * 2000 + "x.npy"),
    *([], [0], [[]], [[0, 1]], [[0, 1], [0, 2]], [[0, 1e300], [1e-320, 0]], [[1, 2, 3]], [1] * 1000, ["W"], ["W", "W"]),
    *({}, {"W": 1}, {"file": "x.h5"}, {"mean": 1e300, "std": 1e300}, {"": {"": {}}}, date(2020, 2, 2)),
]
LINES = [b"[", b"[[", b"a = [" + b"[" * 500, b"[run]", b"x = 1e999999", b"y = 0x" + b"f" * 5000, b"z = " + b"9" * 5000]
LINES += [b'"' * 3, b"\xff\xfe", b"." * 3000 + b" = 1", b"a" + b".a" * 3000 + b" = 1", b"t = " + b"{a=" * 400]
bases: list[dict[str, Any]] = []


def prepare(folder: Path) -> None:
    """Write points for jobs that read a file, a model and a scheme, and files that are neither."""
    np.save(folder / "data.npy", np.random.default_rng(1).normal(size=(40, 6)))
    copy(HERE.parents[1] / "examples/ternary.py", folder / "model.py")
    copy(HERE / "random_temperature.py", folder / "scheme.py")
    (folder / "large.py").write_bytes(b"#" * (2 << 20))
    (folder / "folder.py").mkdir()


def load_bases(folder: Path) -> None:
    """Load the shipped jobs as they are and with all defaults, and jobs with own model and scheme files."""
    for path in sorted(JOBS.rglob("*.toml")):
        if path.name != "table.toml":
            table = tomllib.loads(path.read_text())
            if table["data"]["source"] != "bars":
                table["data"] = {"source": str(folder / "data.npy"), "shape": [2, 3], "memory": "1 GB"}
                table["model"]["causes"], table["inference"] = 4, {"candidates": 3, "gamma": 2}
            bases.extend([table, check_job(table).resolved()])
    own = deepcopy(bases[0])
    own["model"] |= {"file": str(folder / "model.py"), "each": ["pi"], "init": {"W": {"rows": "random"}, "pi": 0.3}}
    own["model"].pop("name")
    own["inference"] |= {"file": str(folder / "scheme.py")}
    own["inference"].pop("scheme", None)
    for code in ("model.py", "scheme.py", "large.py", "folder.py", "gone.py", "data.npy"):
        other = deepcopy(own)
        other["model"]["file"] = str(folder / code)
        bases.append(other)


def case(rng: np.random.Generator, folder: Path) -> None:
    """Damage a job and check it."""
    warnings.simplefilter("error", RuntimeWarning)  # an unexpected number
    if not bases:
        load_bases(folder)
    table, settings = deepcopy(bases[rng.integers(len(bases))]), []
    way = rng.integers(4)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if way == 0:
            replace_value(rng, table)
        elif way == 1:
            change_keys(rng, table)
        elif way == 2:
            settings.append(hostile_setting(rng, table))
    if way == 3 or rng.random() < 0.3:
        text = tomli_w.dumps(table) if way == 3 else as_toml(table)
        if text is not None:
            data = spoil(rng, text.encode(errors="surrogatepass")) if way == 3 else text.encode(errors="replace")
            (folder / "job.toml").write_bytes(data)
            table = str(folder / "job.toml")
    try:
        judge(rng, read_job(table, settings))
    except OSError as error:
        if line := shared_error_message(error, Ranks()):  # as the commands say it
            raise UserError(line) from None
        raise


def judge(rng: np.random.Generator, job: Job) -> None:
    """Check an accepted job: it can be pickled, its schedules are numbers, and it can start."""
    assert check_job(tomllib.loads(job.toml())).toml() == pickle.loads(pickle.dumps(job)).toml() == job.toml()
    source, ranks = open_source(job), Ranks()
    model, scheme, block = model_and_block_size(job, source)
    need = demand_of(job, source, ranks.size)
    check_memory(need, ranks)
    assert 0 < need.memory + need.root < 2**50
    if need.allocated + need.root > 10 * SMALL or need.states * source.dims > SMALL:
        return
    dims = source.dims
    largest_by_dim, std_by_dim = np.full(dims, 10.0), np.ones(dims)
    summary = Summary(source.points, dims, 10.0, 1.0, 2.0, 0.1, largest_by_dim=largest_by_dim, std_by_dim=std_by_dim)
    params = {name: initial_value_of(model, name, summary, stream(job.run.seed, "init")) for name in model.params}
    assert all(np.isfinite(value).all() for value in params.values())
    batches = Batches(source.points, block, job.anneal.batch or source.points, job.run.seed)
    schedule = Schedule(job.anneal, model, scheme.max_active, batches)
    last = job.anneal.iterations - 1
    for t in {0, 1, last // 3, last // 2, last - 1, last}:
        settings = schedule.settings(EMState(min(max(t, 0), last), params, {}, {}))
        assert isfinite(settings.temperature + settings.cut + sum(settings.noise.values()))
        assert 0 <= settings.points <= source.points
        assert 0 < settings.step <= 1
        assert not np.isnan(list(settings.model.values())).any()
    if rng.random() < FITTED:
        short = job.resolved()
        short["anneal"]["iterations"] = min(2, job.anneal.iterations)
        result = fit(short)
        assert all(np.isfinite(value).all() for value in result.params.values())
        assert np.isfinite(result.history["free_energy"]).all()


def places(table: Any) -> list[tuple[Any, Any]]:
    """Return all entries of nested tables and lists, each as container and key or index."""
    keys = list(table) if isinstance(table, dict) else range(len(table)) if isinstance(table, list) else []
    return [(table, key) for key in keys] + [place for key in keys for place in places(table[key])]


def hostile_value(rng: np.random.Generator, old: Any) -> Any:
    """Return a hostile value, or in about half of the cases a plausible number."""
    near = rng.random() < 0.6
    if isinstance(old, int) and not isinstance(old, bool) and near:
        return int(rng.choice([max(1, old + int(rng.integers(-3, 4))), int(10 ** rng.uniform(0, 4))]))
    if isinstance(old, float) and near:
        return float(old * 10 ** rng.uniform(-2, 2) if rng.random() < 0.5 else 10 ** rng.uniform(-60, 60))
    if isinstance(old, list) and old and near:
        return [hostile_value(rng, old[0]), *old[1:]] if rng.random() < 0.5 else old * int(rng.integers(2, 5))
    if isinstance(old, float) and rng.random() < 0.3:
        return float(rng.choice([-1, 1]) * 10 ** rng.uniform(-320, 308))
    return (
        nested_list(int(rng.integers(2, 300))) if rng.random() < 0.03 else deepcopy(HOSTILE[rng.integers(len(HOSTILE))])
    )


def nested_list(levels: int) -> Any:
    """Return a nested list."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def replace_value(rng: np.random.Generator, table: dict[str, Any]) -> None:
    """Replace a value."""
    found = places(table)
    holder, key = found[rng.integers(len(found))]
    holder[key] = hostile_value(rng, holder[key])


def change_keys(rng: np.random.Generator, table: dict[str, Any]) -> None:
    """Remove, misspell, move or add a key."""
    tables = [table, *(holder[key] for holder, key in places(table) if isinstance(holder[key], dict))]
    at = tables[rng.integers(len(tables))]
    keys = list(at) or ["none"]
    key = keys[rng.integers(len(keys))]
    way = rng.integers(4)
    if way < 3:
        value = at.pop(key, 1)
    if way == 1:
        at[key[:-1] + str(rng.choice([*"abc", "", "\n", "ü", "x" * 9999]))] = value
    elif way == 2:
        tables[rng.integers(len(tables))][key] = value
    elif way == 3:
        at[str(rng.choice(["threads", "memory", "stop", "cut", "", "a.b", "\u2028", "W"]))] = hostile_value(rng, 1.0)


def hostile_setting(rng: np.random.Generator, table: dict[str, Any]) -> str:
    """Return a hostile setting of the command line."""
    section = list(table)[rng.integers(len(table))]
    keys = list(table[section]) or ["x"]
    key = keys[rng.integers(len(keys))]
    value = hostile_value(rng, table[section].get(key))
    text = f"{section}.{key}={'[' * 999 if isinstance(value, list) and rng.random() < 0.1 else value!r}"
    if rng.random() < 0.2:
        text = spoil(rng, text.encode(errors="replace")).decode(errors="replace")
    return text


def as_toml(table: dict[str, Any]) -> str | None:
    """Return the table as TOML, None if it cannot be TOML."""
    try:
        return tomli_w.dumps(table)
    except (TypeError, ValueError, RecursionError):
        return None


def spoil(rng: np.random.Generator, text: bytes) -> bytes:
    """Change, cut, repeat or insert bytes."""
    data = bytearray(text)
    for _ in range(rng.integers(1, 4)):
        first, last = sorted(rng.integers(0, len(data) + 1, 2).tolist())
        way = rng.integers(5)
        if way == 0 and first < len(data):
            data[first] ^= 1 << int(rng.integers(8))
        elif way == 1:
            del data[first : min(last, first + 40)]
        elif way == 2:
            data[first:first] = data[first:last]
        elif way == 3:
            data[first:first] = rng.bytes(int(rng.integers(1, 9)))
        else:
            data[first:first] = b"\n" + LINES[rng.integers(len(LINES))] + b"\n"
    return bytes(data)
