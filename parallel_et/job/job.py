"""The job file: its sections, their keys, types, ranges and defaults, and one helpful line for every mistake."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from parallel_et.control.paths import check_plain
from parallel_et.core.latent_states import Latents
from parallel_et.core.model import Model
from parallel_et.core.options import START, keys_of
from parallel_et.core.registry import Registry, read_source
from parallel_et.core.schema import CHOICE, MOST, SHOWN, Interval, Section, printable, show
from parallel_et.core.scheme import Scheme, suits
from parallel_et.data import generators
from parallel_et.data.base import DataOptions
from parallel_et.errors import UserError, meant
from parallel_et.job.anneal import keys_for
from parallel_et.models import MODELS
from parallel_et.schemes import SCHEMES


class FileOptions(DataOptions):
    """The keys of [data] for a file."""

    source: str = Field(description='"file.h5:/dataset", "file.npy", or the name of a generator')
    points: int | None = Field(None, ge=1, le=MOST, description="use only so many rows, from the first")
    shape: list[Annotated[int, Field(ge=1, le=MOST)]] | None = Field(
        None, min_length=1, max_length=32, description="shape of a point for pictures, by default that of the file"
    )


class Checkpoint(Section):
    """When a run writes down where it stands; it also does so at its end and when it is told to stop."""

    every: Interval = Field("10 min", description="time between two checkpoints, or number of iterations")
    keep: int = Field(2, ge=1, le=MOST, description="how many of the last ones are kept")


class Run(Section):
    """The keys of [run]."""

    seed: int = Field(1, ge=0, lt=2**63, description="seed of all that is random")
    threads: int = Field(1, ge=1, le=1024, description="threads of a rank; they change the time, not the result")
    block: int | None = Field(
        None,
        ge=16,
        le=4096,
        description="points that are computed together, by default as many as are economical; no more ranks than there "
        "are blocks have work",
    )
    snapshots: int = Field(0, ge=0, le=MOST, description="keep W every so many iterations; 0: never")
    picture: bool = Field(False, description="draw the fields to fields.png at the end")
    metrics: Literal["csv"] | None = Field(
        None, description="write what is known of each iteration, a line each, to metrics.csv as the run goes on"
    )
    checkpoint: Checkpoint = Checkpoint()


class UntrustedError(UserError):
    """The job is of a model or scheme of a file that is not to be executed."""

    def __init__(self, file: str) -> None:
        super().__init__(
            f"{file}: expected to be named again or trusted, as it is code, found neither; --trust runs "
            "the copy in the run directory, --model or --scheme FILE another file of the same content"
        )


@dataclass(frozen=True)
class Job:
    """A validated job: one object a section, and the classes of its model and its scheme.

    ``files`` are where those were read that come from a file, by section; ``written`` is the job as its author wrote
    it, and what was set besides.
    """

    name: str
    model: Any
    data: Any
    inference: Any
    anneal: Any
    run: Run
    Model: type[Model]
    Scheme: type[Scheme]
    files: Mapping[str, str]
    written: str = ""

    def resolved(self) -> dict[str, dict[str, Any]]:
        """All keys with their values, defaults filled in, as plain tables."""
        return {section: getattr(self, section).model_dump(exclude_none=True) for section in SECTIONS}

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels between ranks as its tables."""
        return check_job, (self.resolved(), self.name, self.name, self.files, self.written)

    def code(self) -> dict[str, bytes]:
        """The text of the files that its model and its scheme are from, by section."""
        return {section: read_source(path) for section, path in self.files.items()}

    def toml(self) -> str:
        """The resolved job as a job file."""
        return tomli_w.dumps(self.resolved())


LIMITS = {
    "greater_than": ("above {}", "gt"),
    "greater_than_equal": ("of {} or more", "ge"),
    "less_than": ("below {}", "lt"),
    "less_than_equal": ("of {} or less", "le"),
}
WITHOUT_EFFECT = ("run.threads", "data.memory")
"""Keys that change no result: a run may go on with other values."""
HARMLESS = ("anneal.iterations", "anneal.stop", "run.checkpoint", "run.snapshots", "run.picture", "run.metrics")
"""Keys in which a run may go on with other values if its user says so."""
NESTED = "tables or lists nested too deeply"
DEFAULT_SCHEME = "et"
SECTIONS = ("model", "data", "inference", "anneal", "run")
JOBS = Path(__file__).parent.parent / "jobs"
"""The jobs that come with the package."""
HDF5 = (".h5", ".hdf5")
"""What the names of files end in of which a dataset is to be named."""
LARGEST_FILE = 1 << 20
"""Bytes of a job file."""
MOST_LINES = 20
"""Mistakes that are told at once."""


def read_job(
    job: str | Mapping[str, Any], settings: Iterable[str] = (), instead: Mapping[str, Any] | None = None
) -> Job:
    """The job of a file or of nested tables, with ``section.key=value`` settings.

    ``instead`` of its [data] another, which keeps of it only whether it is centred, and what is held out.
    """
    table, name, where, written = (dict(job), "job", "job", "") if isinstance(job, Mapping) else _load(job)
    for setting in settings:
        _set(table, setting)
        written += f"# --set {setting}\n"
    if instead is not None:
        data = table.get("data", {})
        kept = {key: data[key] for key in ("centre", "holdout") if isinstance(data, Mapping) and key in data}
        table = {**table, "data": {**instead, **kept}}
    return check_job(table, name, where, written=written)


def _load(path: str) -> tuple[dict[str, Any], str, str, str]:
    try:
        check_plain(path, f"a job file of at most {LARGEST_FILE} bytes")
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise UserError(f"{path}: expected a job file of at most {LARGEST_FILE} bytes, found more")
        table = tomllib.loads(text.decode())
    except FileNotFoundError:
        raise UserError(f"{path}: expected a job file, found nothing there{_shipped(path)}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(printable(f"{path}: expected TOML, found a mistake: {error!s:.200}")) from None
    except RecursionError:
        raise UserError(f"{path}: expected a job file, found {NESTED}") from None
    except (OSError, ValueError) as error:
        raise UserError(printable(f"{path}: expected a job file, found something else ({error!s:.200})")) from None
    name = Path(path).name.removesuffix(".toml")
    if name in ("", ".", ".."):  # its run would go to the folder of all runs, or above
        raise UserError(f"{path}: expected a name before .toml, which its run has too, found {name!r}")
    return table, name, str(path), f"{text.decode().rstrip()}\n"


def _shipped(path: str) -> str:
    """Where a job lies that comes with the package, if one is meant."""
    there = {job.name: job for job in sorted(JOBS.rglob("*.toml")) if job.name != "table.toml"}
    near = get_close_matches(Path(path).name[:SHOWN], there, 1, 0.8)
    return f", but there is {there[near[0]]}" if near else ""


def _set(table: dict[str, Any], setting: str) -> None:
    place, equals, text = setting.partition("=")
    *parents, key = place.strip().split(".")
    if not equals or not key:
        raise UserError(f"--set: expected section.key=value, found {show(setting)}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError):
        raise UserError(f"--set {_cut(place)}: expected a value, found too many digits or {NESTED}") from None
    if not parents and not isinstance(value, dict):
        raise UserError(f"--set: expected section.key=value, or section={{...}} for all of one, found {show(setting)}")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {_cut(setting)}: expected a table {_cut(parent)}, found a value")
    table[key] = value


def check_job(
    table: Mapping[str, Any],
    name: str = "job",
    where: str = "job",
    files: Mapping[str, str] | None = None,
    written: str = "",
) -> Job:
    """Validate a job given as nested tables; all its mistakes at once, one line each.

    A model or a scheme of a file is executed. ``files``, by section, are then read instead of those that the job names;
    where they are given, others are not executed: UntrustedError.
    """
    lines: list[str] = []

    def wrong(place: str, expected: str, found: object, more: str = "") -> None:
        lines.append(f"{where}: {place}: expected {expected}, found {show(found)}{more}")

    unknown = [str(section) for section in table if section not in SECTIONS]
    lines += [f"{where}: {_cut(name)}: unknown section{_nearest(name, SECTIONS)}" for name in unknown[:MOST_LINES]]
    tables = {section: table.get(section, {}) for section in SECTIONS}
    for section, content in tables.items():
        if not isinstance(content, Mapping):
            wrong(section, "a table", content)
            tables[section] = {}
    model, model_file = _found(tables, "model", "name", MODELS, files, wrong)
    scheme, scheme_file = _found(tables, "inference", "scheme", SCHEMES, files, wrong)
    kinds: dict[str, Any] = {"run": Run, "data": _data_kind(tables["data"].get("source"), wrong)}
    kinds |= {"model": keys_of(model), "anneal": keys_for(model)} if model is not None else {}
    kinds |= {"inference": scheme.Options} if scheme is not None else {}
    parts: dict[str, Any] = {}
    for section, kind in kinds.items():
        try:
            parts[section] = kind.model_validate(dict(tables[section])) if kind is not None else None
        except ValidationError as error:
            mistakes = _without_echoes(error.errors()[: 2 * MOST_LINES])
            lines += [_line(f"{where}: {section}", mistake, kind) for mistake in mistakes]
    if parts.get("data") is not None:
        for key, expected, found in parts["data"].mistakes():
            wrong(f"data.{key}", expected, found)
        stop = getattr(parts.get("anneal"), "stop", None)
        if stop is not None and stop.holdout and parts["data"].holdout is None:
            wrong("anneal.stop.holdout", "data.holdout as well", None)
    if scheme is not None and "inference" in parts:
        _fit_together(model, scheme, parts, tables["model"].get("causes"), wrong)
    if lines:
        different = list(dict.fromkeys(map(printable, lines)))
        more = [f"{where}: and more mistakes"] if len(different) > MOST_LINES else []
        raise UserError("\n".join([*different[:MOST_LINES], *more]))
    assert model is not None
    assert scheme is not None
    return Job(name=name, **parts, Model=model, Scheme=scheme, files=model_file | scheme_file, written=written)


def _found(
    tables: dict[str, Any], section: str, key: str, registry: Registry, files: Mapping[str, str] | None, wrong: Any
) -> tuple[Any, dict[str, str]]:
    """The class that a section names, by name or by file, and where a file was read; its digest becomes a key."""
    content = tables[section]
    name, file = content.get(key, DEFAULT_SCHEME if section == "inference" else None), content.get("file")
    if isinstance(file, str):
        if files is not None and section not in files:
            raise UntrustedError(file)
        path = file if files is None else files[section]
        text = read_source(path)
        digest = sha256(text).hexdigest()
        if content.get("sha256", digest) != digest:
            wrong(f"{section}.file", f"the file with the digest {content['sha256']}", f"{path} with {digest}")
            return None, {}
        tables[section] = {key: Path(file).stem, **content, "sha256": digest}
        return registry.of_text(text, path), {section: path}
    try:
        return registry.find(name if isinstance(name, str) else ""), {}
    except KeyError:
        names = registry.names()
        word = name[:SHOWN].lower() if isinstance(name, str) else ""
        wrong(f"{section}.{key}", " or ".join(names), name, meant(word, names))
        near = get_close_matches(word, names, 1)
        return registry.find(near[0]) if near else None, {}


def _data_kind(source: object, wrong: Any) -> type[Section] | None:
    """Which class validates [data], by the name of its source."""
    if isinstance(source, str) and source in generators():
        return generators()[source].Options
    if isinstance(source, str) and (source.endswith((".npy", *HDF5)) or ":" in source):
        return FileOptions
    names = sorted(generators())
    more = meant(source[:SHOWN], names) if isinstance(source, str) else ""
    wrong("data.source", f'{", ".join(map(show, names))}, "file.npy" or "file.h5:/dataset"', source, more)
    return None


def _fit_together(
    model: type[Model] | None, scheme: type[Scheme], parts: dict[str, Any], causes: object, wrong: Any
) -> None:
    """Whether the scheme can do with what the model offers, and its keys with the states that the model has."""
    if model is not None and not suits(model, scheme):
        able = [name for name in SCHEMES.names() if suits(model, SCHEMES.find(name))]
        lacks = " and ".join(need.__name__ for need in scheme.needs)
        expected = f"{' or '.join(able) or 'no scheme of this version'} for a model whose View is no {lacks}"
        wrong("inference.scheme", expected, parts["inference"].scheme)
        return
    if model is not None and not model.evidence:
        _without_evidence(parts, wrong)
    if model is not None and "model" in parts:
        latents = model(parts["model"], 1).latents  # for points of one dimension
    elif type(causes) is int and causes > 0:
        latents = Latents(causes)  # as most have them
    else:
        return
    mistakes = parts["inference"].mistakes(latents)
    if latents.windows is not None:  # larger points have more atoms: model_of refuses what is too much for them
        anywhere = {key for key, _, _ in parts["inference"].mistakes(latents._replace(atoms=MOST))}
        mistakes = [mistake for mistake in mistakes if mistake[0] in anywhere]
    for key, expected, found in mistakes:
        wrong(f"inference.{key}", expected, found)


def _without_evidence(parts: dict[str, Any], wrong: Any) -> None:
    """What takes the evidence of points or states, of which the model has none."""
    of = "for a model without evidence"
    if (anneal := parts.get("anneal")) is not None:
        cut = anneal.cut.schedule
        if any(value > 0 for _, value in cut) if isinstance(cut, list) else cut > 0:
            wrong("anneal.cut.schedule", f"no cut {of}", cut)
        if anneal.renew:
            wrong("anneal.renew", f"0 {of}", anneal.renew)
    if (data := parts.get("data")) is not None and data.holdout is not None:
        wrong("data.holdout", f"none {of}", data.holdout)
    if getattr(parts["inference"], "weights", "") == "joint":
        wrong("inference.weights", f"draws {of}", "joint")


def _without_echoes(mistakes: list[Any]) -> list[Any]:
    """Leave out that a key is missing where it is there, misspelt."""
    typos = [mistake["loc"] for mistake in mistakes if mistake["type"] == "extra_forbidden"]

    def misspelt(loc: tuple[Any, ...]) -> bool:
        return any(t[:-1] == loc[:-1] and get_close_matches(_cut(t[-1]), [str(loc[-1])], 1, 0.6) for t in typos)

    return [mistake for mistake in mistakes if not (mistake["type"] == "missing" and misspelt(mistake["loc"]))]


def _line(where: str, mistake: Any, kind: type[Section]) -> str:
    path = [part for part in mistake["loc"] if not str(part).startswith(CHOICE)]
    place = ".".join([where, *map(_cut, path)])
    if mistake["type"] == "extra_forbidden":
        return f"{place}: unknown key{_nearest(str(path[-1]), _keys(kind, mistake['loc'][:-1]))}"
    if mistake["type"] == "missing":
        return f"{place}: expected a value, found none"
    if mistake["type"] in LIMITS:
        words, limit = LIMITS[mistake["type"]]
        return (
            f"{place}: expected a value {words.format(_number(mistake['ctx'][limit]))}, found {show(mistake['input'])}"
        )
    if mistake["type"] == "union_tag_not_found":
        return f"{place}: expected {START}, found {show(mistake['input'])}"
    expected = mistake["msg"].removeprefix("Input should be ").replace("a valid integer", "an integer")
    expected = "a table" if mistake["type"] == "model_type" else expected.replace("a valid ", "a ")
    return f"{place}: expected {expected}, found {show(mistake['input'])}"


def _number(limit: float) -> str:
    """A limit for a message: short, unless that would be another number."""
    return f"{limit:g}" if float(f"{limit:g}") == limit else f"{limit:.12g}"


def _keys(kind: Any, path: Iterable[Any]) -> list[str]:
    """Keys that are known at a place within a section; the path names fields, and choices between tables."""
    for part in path:
        if str(part).startswith(CHOICE):
            kind = next(table for table in _tables(kind) if f"{CHOICE}{table.__name__}" == part)
        else:
            kind = next((t.model_fields[part].annotation for t in _tables(kind) if part in t.model_fields), None)
    found = _tables(kind)
    return list(found[0].model_fields) if len(found) == 1 else []


def _tables(kind: Any) -> list[Any]:
    """The sections among the types that an annotation names."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [table for inner in getattr(kind, "__args__", ()) for table in _tables(inner)]


def _nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = get_close_matches(word[:SHOWN], known, 1, 0.6)
    return f", did you mean {close[0]}?" if close else f"; known are {', '.join(known)}" if known else ""


def _cut(key: object) -> str:
    text = str(key)
    return printable(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def differing_keys(
    old: Mapping[str, Any], new: Mapping[str, Any], but: Iterable[str] = (), place: str = ""
) -> list[str]:
    """Keys in which two resolved jobs differ, a line each, ``but`` for these and those that change no result."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if f"{place}{key}" in (*WITHOUT_EFFECT, *but):
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differing_keys(a, b, but, f"{place}{key}.")
        elif a != b:
            lines.append(f"{place}{key}: {show(a)} there, {show(b)} here")
    return lines
