"""The job file: sections, keys, types, ranges and defaults, and one error line for each invalid key."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from parallel_et.control.paths import check_regular_file
from parallel_et.core.latent_states import Latents
from parallel_et.core.model import Model
from parallel_et.core.options import INIT_FORMS, options_class
from parallel_et.core.registry import Registry, read_source
from parallel_et.core.schema import CHOICE, MAX_COUNT, SHOWN_CHARACTERS, Interval, Section, format_value, printable
from parallel_et.core.scheme import Scheme, suits
from parallel_et.data import generators
from parallel_et.data.base import DataOptions
from parallel_et.errors import UserError, suggestion
from parallel_et.job.anneal import keys_for
from parallel_et.models import MODELS
from parallel_et.schemes import SCHEMES


class FileOptions(DataOptions):
    """The keys of [data] for a file."""

    source: str = Field(description='"file.h5:/dataset", "file.npy", or the name of a generator')
    points: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="number of rows to use, starting with the first; default: all rows"
    )
    shape: list[Annotated[int, Field(ge=1, le=MAX_COUNT)]] | None = Field(
        None, min_length=1, max_length=32, description="shape of a point for pictures; default: the shape in the file"
    )


class Checkpoint(Section):
    """Checkpoints, from which a run resumes. A run also writes a checkpoint at its end and when it stops early."""

    every: Interval = Field("10 min", description="time between two checkpoints, or number of iterations")
    keep: int = Field(2, ge=1, le=MAX_COUNT, description="number of checkpoints to keep")


class Run(Section):
    """The keys of [run]."""

    seed: int = Field(1, ge=0, lt=2**63, description="seed of all random numbers")
    threads: int = Field(1, ge=1, le=1024, description="number of threads per rank; results do not depend on it")
    block: int | None = Field(
        None,
        ge=16,
        le=4096,
        description="number of points per block, the unit of work; default: computed from the sizes of the job; at "
        "most one rank per block is useful",
    )
    snapshots: int = Field(
        0, ge=0, le=MAX_COUNT, description="iterations between two snapshots of the parameters; 0: no snapshots"
    )
    picture: bool = Field(False, description="draw the fields to fields.png at the end of the run")
    metrics: Literal["csv"] | None = Field(
        None, description="write a line for each iteration to metrics.csv during the run"
    )
    checkpoint: Checkpoint = Checkpoint()


class UntrustedError(UserError):
    """The job has a custom model or scheme whose code must not be executed."""

    def __init__(self, file: str) -> None:
        super().__init__(
            f"{file}: expected permission to execute this code, found none; --trust executes the copy in the run "
            "directory; --model FILE or --scheme FILE executes another file with the same content"
        )


@dataclass(frozen=True)
class Job:
    """A validated job: the options of each section, and the classes of model and scheme.

    Attributes
    ----------
    files : section of the job -> file of a custom model or scheme
    written : text of the job file, and the settings of the command line
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
        """Return all keys with their values, including defaults, as nested dicts."""
        return {section: getattr(self, section).model_dump(exclude_none=True) for section in SECTIONS}

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a job between ranks as its tables."""
        return check_job, (self.resolved(), self.name, self.name, self.files, self.written)

    def code(self) -> dict[str, bytes]:
        """Return the code of a custom model and scheme, by section."""
        return {section: read_source(path) for section, path in self.files.items()}

    def toml(self) -> str:
        """Return the resolved job as the text of a job file."""
        return tomli_w.dumps(self.resolved())


LIMITS = {
    "greater_than": ("above {}", "gt"),
    "greater_than_equal": ("of {} or more", "ge"),
    "less_than": ("below {}", "lt"),
    "less_than_equal": ("of {} or less", "le"),
}
KEYS_WITHOUT_EFFECT = ("run.threads", "data.memory")
"""Keys that do not change results: a run may always be resumed with other values."""
CHANGEABLE_KEYS = ("anneal.iterations", "anneal.stop", "run.checkpoint", "run.snapshots", "run.picture", "run.metrics")
"""Keys whose values may change when a run is resumed, if the user allows it (``--allow``)."""
NESTED = "tables or lists nested too deeply"
DEFAULT_SCHEME = "et"
SECTIONS = ("model", "data", "inference", "anneal", "run")
JOBS = Path(__file__).parent.parent / "jobs"
"""Folder of the jobs of the package."""
HDF5_ENDINGS = (".h5", ".hdf5")
"""Endings of files for which a dataset must be named."""
MAX_JOB_FILE_BYTES = 1 << 20
"""Largest size of a job file."""
MAX_ERROR_LINES = 20
"""Maximum number of errors that are reported together."""


def read_job(
    job: str | Mapping[str, Any], settings: Iterable[str] = (), instead: Mapping[str, Any] | None = None
) -> Job:
    """Read and validate a job.

    Parameters
    ----------
    job : path of a job file, or its sections as nested dicts
    settings : ``section.key=value``, replace keys of the job
    instead : replaces the section [data], except its keys ``centre`` and ``holdout``
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
        check_regular_file(path, f"a job file of at most {MAX_JOB_FILE_BYTES} bytes")
        with open(path, "rb") as file:
            text = file.read(MAX_JOB_FILE_BYTES + 1)
        if len(text) > MAX_JOB_FILE_BYTES:
            raise UserError(f"{path}: expected a job file of at most {MAX_JOB_FILE_BYTES} bytes, found more")
        table = tomllib.loads(text.decode())
    except FileNotFoundError:
        raise UserError(f"{path}: expected a job file, found nothing there{_shipped(path)}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(printable(f"{path}: expected TOML, found an error: {error!s:.200}")) from None
    except RecursionError:
        raise UserError(f"{path}: expected a job file, found {NESTED}") from None
    except (OSError, ValueError) as error:
        raise UserError(printable(f"{path}: expected a job file, found something else ({error!s:.200})")) from None
    name = Path(path).name.removesuffix(".toml")
    if name in ("", ".", ".."):  # its run directory would be the folder of all runs, or its parent
        raise UserError(f"{path}: expected a file name before .toml, the name of its run, found {name!r}")
    return table, name, str(path), f"{text.decode().rstrip()}\n"


def _shipped(path: str) -> str:
    """Return a hint to a job of the package with a similar name, if there is one."""
    jobs = {job.name: job for job in sorted(JOBS.rglob("*.toml")) if job.name != "table.toml"}
    near = get_close_matches(Path(path).name[:SHOWN_CHARACTERS], jobs, 1, 0.8)
    return f", but there is {jobs[near[0]]}" if near else ""


def _set(table: dict[str, Any], setting: str) -> None:
    place, equals, text = setting.partition("=")
    *parents, key = place.strip().split(".")
    if not equals or not key:
        raise UserError(f"--set: expected section.key=value, found {format_value(setting)}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError):
        raise UserError(f"--set {_cut(place)}: expected a value, found too many digits or {NESTED}") from None
    if not parents and not isinstance(value, dict):
        raise UserError(
            f"--set: expected section.key=value, or section={{...}} for a whole section, found {format_value(setting)}"
        )
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
    """Validate a job; raise one UserError with a line for each error.

    Parameters
    ----------
    table : sections of the job as nested dicts
    name : name of the job
    where : origin of the job, for error messages
    files : section -> file of a custom model or scheme, executed instead of the file that the job names. If given,
        no other code is executed: UntrustedError. Default: the files that the job names are executed.
    written : text of the job file
    """
    lines: list[str] = []

    def add_error(key: str, expected: str, found: object, more: str = "") -> None:
        lines.append(f"{where}: {key}: expected {expected}, found {format_value(found)}{more}")

    unknown = [str(section) for section in table if section not in SECTIONS]
    lines += [f"{where}: {_cut(name)}: unknown section{_nearest(name, SECTIONS)}" for name in unknown[:MAX_ERROR_LINES]]
    tables = {section: table.get(section, {}) for section in SECTIONS}
    for section, content in tables.items():
        if not isinstance(content, Mapping):
            add_error(section, "a table", content)
            tables[section] = {}
    model, model_file = _found(tables, "model", "name", MODELS, files, add_error)
    scheme, scheme_file = _found(tables, "inference", "scheme", SCHEMES, files, add_error)
    kinds: dict[str, Any] = {"run": Run, "data": _data_kind(tables["data"].get("source"), add_error)}
    kinds |= {"model": options_class(model), "anneal": keys_for(model)} if model is not None else {}
    kinds |= {"inference": scheme.Options} if scheme is not None else {}
    parts: dict[str, Any] = {}
    for section, kind in kinds.items():
        try:
            parts[section] = kind.model_validate(dict(tables[section])) if kind is not None else None
        except ValidationError as error:
            errors = _without_misspelt(error.errors()[: 2 * MAX_ERROR_LINES])
            lines += [_line(f"{where}: {section}", error, kind) for error in errors]
    if parts.get("data") is not None:
        for key, expected, found in parts["data"].inconsistencies():
            add_error(f"data.{key}", expected, found)
        stop = getattr(parts.get("anneal"), "stop", None)
        if stop is not None and stop.holdout and parts["data"].holdout is None:
            add_error("anneal.stop.holdout", "data.holdout as well", None)
    if scheme is not None and "inference" in parts:
        _fit_together(model, scheme, parts, tables["model"].get("causes"), add_error)
    if lines:
        different = list(dict.fromkeys(map(printable, lines)))
        more = [f"{where}: and more errors"] if len(different) > MAX_ERROR_LINES else []
        raise UserError("\n".join([*different[:MAX_ERROR_LINES], *more]))
    assert model is not None
    assert scheme is not None
    return Job(name=name, **parts, Model=model, Scheme=scheme, files=model_file | scheme_file, written=written)


def _found(
    tables: dict[str, Any], section: str, key: str, registry: Registry, files: Mapping[str, str] | None, add_error: Any
) -> tuple[Any, dict[str, str]]:
    """Return the class that a section names, and the file of a custom class; add the digest of the file to its keys."""
    content = tables[section]
    name, file = content.get(key, DEFAULT_SCHEME if section == "inference" else None), content.get("file")
    if isinstance(file, str):
        if files is not None and section not in files:
            raise UntrustedError(file)
        path = file if files is None else files[section]
        text = read_source(path)
        digest = sha256(text).hexdigest()
        if content.get("sha256", digest) != digest:
            add_error(f"{section}.file", f"the file with the digest {content['sha256']}", f"{path} with {digest}")
            return None, {}
        tables[section] = {key: Path(file).stem, **content, "sha256": digest}
        return registry.load_text(text, path), {section: path}
    try:
        return registry.find(name if isinstance(name, str) else ""), {}
    except KeyError:
        names = registry.names()
        word = name[:SHOWN_CHARACTERS].lower() if isinstance(name, str) else ""
        add_error(f"{section}.{key}", " or ".join(names), name, suggestion(word, names))
        near = get_close_matches(word, names, 1)
        return registry.find(near[0]) if near else None, {}


def _data_kind(source: object, add_error: Any) -> type[Section] | None:
    """Return the class that validates [data] with this source."""
    if isinstance(source, str) and source in generators():
        return generators()[source].Options
    if isinstance(source, str) and (source.endswith((".npy", *HDF5_ENDINGS)) or ":" in source):
        return FileOptions
    names = sorted(generators())
    more = suggestion(source[:SHOWN_CHARACTERS], names) if isinstance(source, str) else ""
    add_error("data.source", f'{", ".join(map(format_value, names))}, "file.npy" or "file.h5:/dataset"', source, more)
    return None


def _fit_together(
    model: type[Model] | None, scheme: type[Scheme], parts: dict[str, Any], causes: object, add_error: Any
) -> None:
    """Check the scheme against the model, and its keys against the states of the model."""
    if model is not None and not suits(model, scheme):
        able = [name for name in SCHEMES.names() if suits(model, SCHEMES.find(name))]
        lacks = " and ".join(need.__name__ for need in scheme.needs)
        expected = f"{' or '.join(able) or 'no scheme of this version'} for a model whose View is no {lacks}"
        add_error("inference.scheme", expected, parts["inference"].scheme)
        return
    if model is not None and not model.evidence:
        _without_evidence(parts, add_error)
    if model is not None and "model" in parts:
        latents = model(parts["model"], 1).latents  # for points of one dimension
    elif type(causes) is int and causes > 0:
        latents = Latents(causes)  # the usual states
    else:
        return
    errors = parts["inference"].inconsistencies(latents)
    if (
        latents.windows is not None
    ):  # larger points have more atoms, so only errors for any number of atoms are reported here
        anywhere = {key for key, _, _ in parts["inference"].inconsistencies(latents._replace(atoms=MAX_COUNT))}
        errors = [error for error in errors if error[0] in anywhere]
    for key, expected, found in errors:
        add_error(f"inference.{key}", expected, found)


def _without_evidence(parts: dict[str, Any], add_error: Any) -> None:
    """Check that no key needs the evidence of a model that has none."""
    of = "for a model without evidence"
    if (anneal := parts.get("anneal")) is not None:
        cut = anneal.cut.schedule
        if any(value > 0 for _, value in cut) if isinstance(cut, list) else cut > 0:
            add_error("anneal.cut.schedule", f"no cut {of}", cut)
        if anneal.renew:
            add_error("anneal.renew", f"0 {of}", anneal.renew)
    if (data := parts.get("data")) is not None and data.holdout is not None:
        add_error("data.holdout", f"none {of}", data.holdout)
    if getattr(parts["inference"], "weights", "") == "joint":
        add_error("inference.weights", f"draws {of}", "joint")


def _without_misspelt(errors: list[Any]) -> list[Any]:
    """Discard errors of missing keys that are present but misspelt."""
    typos = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]

    def misspelt(loc: tuple[Any, ...]) -> bool:
        return any(t[:-1] == loc[:-1] and get_close_matches(_cut(t[-1]), [str(loc[-1])], 1, 0.6) for t in typos)

    return [error for error in errors if not (error["type"] == "missing" and misspelt(error["loc"]))]


def _line(where: str, error: Any, kind: type[Section]) -> str:
    path = [part for part in error["loc"] if not str(part).startswith(CHOICE)]
    place = ".".join([where, *map(_cut, path)])
    if error["type"] == "extra_forbidden":
        return f"{place}: unknown key{_nearest(str(path[-1]), _keys(kind, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return f"{place}: expected a value, found none"
    if error["type"] in LIMITS:
        words, limit = LIMITS[error["type"]]
        expected = words.format(_number(error["ctx"][limit]))
        return f"{place}: expected a value {expected}, found {format_value(error['input'])}"
    if error["type"] == "union_tag_not_found":
        return f"{place}: expected {INIT_FORMS}, found {format_value(error['input'])}"
    expected = error["msg"].removeprefix("Input should be ").replace("a valid integer", "an integer")
    expected = "a table" if error["type"] == "model_type" else expected.replace("a valid ", "a ")
    return f"{place}: expected {expected}, found {format_value(error['input'])}"


def _number(limit: float) -> str:
    """Return a limit with at most six digits, or more if these would change its value."""
    return f"{limit:g}" if float(f"{limit:g}") == limit else f"{limit:.12g}"


def _keys(kind: Any, path: Iterable[Any]) -> list[str]:
    """Return the known keys of a table within a section; the path has fields and choices between tables."""
    for part in path:
        if str(part).startswith(CHOICE):
            kind = next(table for table in _tables(kind) if f"{CHOICE}{table.__name__}" == part)
        else:
            kind = next((t.model_fields[part].annotation for t in _tables(kind) if part in t.model_fields), None)
    found = _tables(kind)
    return list(found[0].model_fields) if len(found) == 1 else []


def _tables(kind: Any) -> list[Any]:
    """Return the sections among the types of an annotation."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [table for inner in getattr(kind, "__args__", ()) for table in _tables(inner)]


def _nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = get_close_matches(word[:SHOWN_CHARACTERS], known, 1, 0.6)
    return f", did you mean {close[0]}?" if close else f"; known are {', '.join(known)}" if known else ""


def _cut(key: object) -> str:
    text = str(key)
    return printable(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…")


def differing_keys(
    old: Mapping[str, Any], new: Mapping[str, Any], but: Iterable[str] = (), place: str = ""
) -> list[str]:
    """Return a line for each key in which two resolved jobs differ, except keys in ``but`` and KEYS_WITHOUT_EFFECT."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if f"{place}{key}" in (*KEYS_WITHOUT_EFFECT, *but):
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differing_keys(a, b, but, f"{place}{key}.")
        elif a != b:
            lines.append(f"{place}{key}: {format_value(a)} there, {format_value(b)} here")
    return lines
