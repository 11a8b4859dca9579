"""First jobs for new users: a complete job for every model, for artificial data or a file."""

import json
from collections.abc import Mapping
from inspect import getdoc
from typing import Any

from parallel_et.core.options import options_class
from parallel_et.data import generators
from parallel_et.data.files import FileRows
from parallel_et.job.anneal import keys_for
from parallel_et.job.job import SECTIONS, FileOptions, Run
from parallel_et.models import MODELS
from parallel_et.schemes import SCHEMES

FIRST_JOB: dict[str, dict[str, Any]] = {
    "model": {"causes": 10},
    "data": {"source": "bars", "points": 1000, "noise": {"kind": "gauss", "sigma": 2.0}},
    "inference": {"candidates": 5, "gamma": 3, "singletons": True},
    "anneal": {"iterations": 100, "temperature": [[0.1, 13.0], [0.8, 1.0]]},
    "run": {"seed": 1, "picture": True},
}
"""The first job of a model that declares no other: ten bars with Gaussian noise."""
FILE_JOB: dict[str, dict[str, Any]] = {
    "inference": {"candidates": 8, "gamma": 4, "singletons": True},
    "anneal": {"iterations": 100, "temperature": [[0.1, 5.0], [0.8, 1.0]]},
}
"""Sections that replace those of the first job if the data are from a file."""
MAX_CAUSES = 100
"""Maximum number of causes in a first job for a file."""
MAX_COLUMNS = 120
"""Longest line with a key and its description; longer descriptions precede the key."""


def names_and_aliases() -> list[str]:
    """Return all names of models, including aliases."""
    return MODELS.names()


def model_names() -> list[str]:
    """Return the names of the models, without aliases."""
    return [name for name in names_and_aliases() if name not in MODELS.aliases]


def description_of(name: str) -> str:
    """Return the description of a model."""
    return lead(MODELS.find(name))


def first_job(name: str, rows: FileRows | None = None) -> str:
    """Return a job with comments for a model, for the rows of a file or for artificial data."""
    model = MODELS.find(name)
    tables: dict[str, dict[str, Any]] = {section: dict(keys) for section, keys in FIRST_JOB.items()}
    if rows is not None:
        tables |= {section: dict(keys) for section, keys in FILE_JOB.items()}
        tables["model"]["causes"] = max(1, min(MAX_CAUSES, rows.points // 10))
    for section, keys in model.first_job.items():
        replaces = any(key in keys for key in ("source", "scheme"))  # another generator or scheme has other keys
        tables[section] = dict(keys) if replaces else tables[section] | dict(keys)
    if rows is not None:
        tables["data"] = {"source": rows.name}
    tables["model"] = {"name": name, **tables["model"]}
    inference = tables["inference"]
    if "candidates" in inference:  # a small file has few causes
        causes = tables["model"]["causes"]
        inference |= {key: min(inference[key], causes) for key in ("candidates", "gamma") if key in inference}
    kinds = {
        "model": options_class(model),
        "data": FileOptions if rows is not None else generators()[tables["data"]["source"]].Options,
        "inference": SCHEMES.find(inference.get("scheme", "et")).Options,
        "anneal": keys_for(model),
        "run": Run,
    }
    lines = [f"# {name}: {lead(model)}", "# Run it with: parallel-et train job.toml"]
    if rows is not None:
        lines += [f"# {rows.name} contains {rows.points} points of {rows.dims} dimensions."]
    for section in SECTIONS:
        lines += ["", f"[{section}]", *describe_keys(tables[section], kinds[section])]
    return "\n".join([*lines, ""])


def describe_keys(keys: Mapping[str, Any], kind: Any) -> list[str]:
    """Return the lines of a section, each key with a comment."""
    settings = {key: f"{key} = {in_line(value)}" for key, value in keys.items()}
    margin = max(map(len, (setting for setting in settings.values() if len(setting) < MAX_COLUMNS // 3)), default=0)
    lines = []
    for key, setting in settings.items():
        words = kind.model_fields[key].description or lead(kind.model_fields[key].annotation)
        line = f"{setting:<{margin}}  # {words}"
        lines += [line] if len(line) <= MAX_COLUMNS else [f"# {words}", setting]
    return lines


def in_line(value: Any) -> str:
    """Return a value as TOML, in one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {in_line(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_line, value))}]"
    return json.dumps(value, ensure_ascii=False)


def lead(kind: Any) -> str:
    """Return the first paragraph of the docstring of a class in one line."""
    return " ".join((getdoc(kind) or "").partition("\n\n")[0].replace("``", "`").split())
