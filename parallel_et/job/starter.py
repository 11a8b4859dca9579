"""A job to begin with, which runs as it stands: for every model, and for data of one's own."""

import json
from collections.abc import Mapping
from inspect import getdoc
from typing import Any

from parallel_et.core.options import keys_of
from parallel_et.data import generators
from parallel_et.data.files import FileRows
from parallel_et.job.anneal import keys_for
from parallel_et.job.job import SECTIONS, FileOptions, Run
from parallel_et.models import MODELS
from parallel_et.schemes import SCHEMES

BARS: dict[str, dict[str, Any]] = {
    "model": {"causes": 10},
    "data": {"source": "bars", "points": 1000, "noise": {"kind": "gauss", "sigma": 2.0}},
    "inference": {"candidates": 5, "gamma": 3, "singletons": True},
    "anneal": {"iterations": 100, "temperature": [[0.1, 13.0], [0.8, 1.0]]},
    "run": {"seed": 1, "picture": True},
}
"""The first job of a model that says nothing else: ten bars that add up under noise."""
OWN: dict[str, dict[str, Any]] = {
    "inference": {"candidates": 8, "gamma": 4, "singletons": True},
    "anneal": {"iterations": 100, "temperature": [[0.1, 5.0], [0.8, 1.0]]},
}
"""What is different where the data are the user's."""
MOST_CAUSES = 100
WIDE = 120
"""Columns up to which what a key does stands behind it."""


def every() -> list[str]:
    """All names of models."""
    return MODELS.names()


def names() -> list[str]:
    """The models by name, each once."""
    return [name for name in every() if name not in MODELS.aliases]


def does(name: str) -> str:
    """What a model says of itself."""
    return lead(MODELS.find(name))


def first_job(name: str, rows: FileRows | None = None) -> str:
    """A job of a model for rows of a file, by default for artificial ones; each key with what it does."""
    model = MODELS.find(name)
    tables: dict[str, dict[str, Any]] = {section: dict(keys) for section, keys in BARS.items()}
    if rows is not None:
        tables |= {section: dict(keys) for section, keys in OWN.items()}
        tables["model"]["causes"] = max(1, min(MOST_CAUSES, rows.points // 10))
    for section, keys in model.first_job.items():
        other = any(key in keys for key in ("source", "scheme"))  # which has keys of its own
        tables[section] = dict(keys) if other else tables[section] | dict(keys)
    if rows is not None:
        tables["data"] = {"source": rows.name}
    tables["model"] = {"name": name, **tables["model"]}
    inference = tables["inference"]
    if "candidates" in inference:  # few rows have few causes
        most = tables["model"]["causes"]
        inference |= {key: min(inference[key], most) for key in ("candidates", "gamma") if key in inference}
    kinds = {
        "model": keys_of(model),
        "data": FileOptions if rows is not None else generators()[tables["data"]["source"]].Options,
        "inference": SCHEMES.find(inference.get("scheme", "et")).Options,
        "anneal": keys_for(model),
        "run": Run,
    }
    lines = [f"# {name}: {lead(model)}", "# Run it by: parallel-et train job.toml"]
    if rows is not None:
        lines += [f"# {rows.name} has {rows.points} points of {rows.dims} dimensions."]
    for section in SECTIONS:
        lines += ["", f"[{section}]", *described(tables[section], kinds[section])]
    return "\n".join([*lines, ""])


def described(keys: Mapping[str, Any], kind: Any) -> list[str]:
    """Keys of a section, and what they do behind them, or above them where that is long."""
    settings = {key: f"{key} = {in_line(value)}" for key, value in keys.items()}
    margin = max(map(len, (setting for setting in settings.values() if len(setting) < WIDE // 3)), default=0)
    lines = []
    for key, setting in settings.items():
        words = kind.model_fields[key].description or lead(kind.model_fields[key].annotation)
        line = f"{setting:<{margin}}  # {words}"
        lines += [line] if len(line) <= WIDE else [f"# {words}", setting]
    return lines


def in_line(value: Any) -> str:
    """A value as TOML has it, in one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {in_line(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_line, value))}]"
    return json.dumps(value, ensure_ascii=False)


def lead(kind: Any) -> str:
    """What a class says of itself in its first paragraph."""
    return " ".join((getdoc(kind) or "").partition("\n\n")[0].replace("``", "`").split())
