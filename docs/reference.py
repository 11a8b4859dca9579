"""The reference pages, in Markdown, from the schema of the job file and from the parsers of the commands.

``python docs/reference.py job`` and ``python docs/reference.py commands`` print what the site shows.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple, get_args, get_origin
from unittest.mock import patch

from pydantic.fields import FieldInfo

from parallel_et.__main__ import COMMANDS
from parallel_et.cli import Parser
from parallel_et.core.options import ModelOptions, keys_of
from parallel_et.core.schema import Section
from parallel_et.data import generators
from parallel_et.data.base import DataOptions
from parallel_et.job.anneal import Anneal, keys_for
from parallel_et.job.job import FileOptions, Run
from parallel_et.job.starter import lead
from parallel_et.models import MODELS, Model
from parallel_et.parallel.communicator import Ranks
from parallel_et.schemes import SCHEMES

PLAIN = {int: "integer", float: "number", str: "text", bool: "true or false"}
LIMITS = (("gt", "above"), ("ge", "from"), ("lt", "below"), ("le", "to"))
HEADS = {"positional arguments": "argument", "options": "option"}
WIDTH = "96"
"""Columns of the usage lines."""


class Key(NamedTuple):
    """A key of the job file, in words."""

    name: str
    kind: str
    default: str
    range: str
    does: str


class FoundError(Exception):
    """Carries the parser out of a command that was about to use it."""


def job() -> str:
    """All keys of the job file, section by section."""
    known: dict[type[Model], list[str]] = {}
    for name in MODELS.names():
        known.setdefault(MODELS.find(name), []).append(name)
    names = {model: " or ".join(f'"{name}"' for name in some) for model, some in known.items()}
    parts = ["## [model]", table(keys(ModelOptions)), "The models:"]
    parts += ["\n".join(f"* {name}: {lead(model)}" for model, name in names.items())]
    parts += own({f"name = {name}": keys_of(model) for model, name in names.items()}, ModelOptions)
    sources = {f'source = "{name}"': source.Options for name, source in generators().items()}
    parts += ["## [data]", table(keys(DataOptions)), *own({"a file": FileOptions, **sources}, DataOptions)]
    parts += ["## [inference]", "Which keys there are depends on the scheme."]
    parts += own({f'scheme = "{name}"': SCHEMES.find(name).Options for name in SCHEMES.names()}, Section)
    parts += ["## [anneal]", table(keys(Anneal))]
    parts += own({f"name = {name}": keys_for(model) for model, name in names.items()}, Anneal)
    return "\n\n".join([*parts, "## [run]", table(keys(Run))]) + "\n"


def own(kinds: Mapping[str, type[Section]], base: type[Section]) -> list[str]:
    """The keys that choices add to those that all have, under headings; those with the same keys under one."""
    titles: dict[str, list[str]] = {}
    for title, section in kinds.items():
        if added := keys(section, but=tuple(base.model_fields)):
            titles.setdefault(table(added), []).append(title)
    return [part for rows, some in titles.items() for part in (f"### With {', '.join(some)}", rows)]


def keys(section: type[Section], place: str = "", but: Sequence[str] = ()) -> list[Key]:
    """The keys of a section and of the tables in it."""
    return [key for name, field in section.model_fields.items() if name not in but for key in _keys(field, place, name)]


def _keys(field: FieldInfo, place: str, name: str) -> Iterator[Key]:
    inner = list(sections(field.annotation))
    kind = " or ".join(["table"] * bool(inner) + types(field))
    default = "required" if field.is_required() else "" if isinstance(field.default, Section) else shown(field.default)
    does = field.description or (lead(inner[0]) if inner else "")
    yield Key(f"{place}{name}", kind, default, limits(field), does)
    for section in inner:
        yield from keys(section, f"{place}{name}.")


def sections(kind: Any) -> Iterator[type[Section]]:
    """The tables among the types that an annotation names."""
    if isinstance(kind, type) and issubclass(kind, Section):
        yield kind
    for part in get_args(kind):
        yield from sections(part)


def types(field: FieldInfo) -> list[str]:
    """The types of a key that are no tables, in words."""
    words = [word for word in field.metadata if isinstance(word, str)]
    return words or list(dict.fromkeys(_types(field.annotation)))


def _types(kind: Any) -> Iterator[str]:
    if kind in PLAIN:
        yield PLAIN[kind]
    elif get_origin(kind) is Literal:
        yield " or ".join(map(json.dumps, get_args(kind)))
    elif get_origin(kind) is list:
        yield f"list of {' or '.join(_types(get_args(kind)[0]))}"
    else:
        for part in get_args(kind):
            yield from _types(part)


def shown(default: Any) -> str:
    """A default as a job file would have it."""
    return "" if default is None else f"`{json.dumps(default)}`"


def limits(field: FieldInfo) -> str:
    """The range of a key."""
    found = {name: getattr(part, name) for part in field.metadata for name, _ in LIMITS if hasattr(part, name)}
    text = " ".join(f"{words} {power(found[name])}" for name, words in LIMITS if name in found)
    return text.replace(" below", ", below")


def power(number: float) -> str:
    """A limit for people."""
    return "2^63" if number == 2**63 else f"{number:,}" if isinstance(number, int) else f"{number:g}"


def table(rows: Sequence[Key]) -> str:
    """The keys as a table."""
    lines = ["| key | type | default | range | |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [f"`{row.name}`", escape(row.kind), row.default, escape(row.range), escape(row.does)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def commands() -> str:
    """All commands with their options and examples."""
    return "\n\n".join(part for name in COMMANDS for part in command(parser_of(name), name)) + "\n"


def parser_of(name: str) -> Parser:
    """The parser of a command: the command is run up to where it would parse its arguments."""

    def stop(parser: Parser, *args: object) -> None:
        raise FoundError(parser)

    with patch.object(Parser, "parse_args", stop):
        try:
            import_module(f"parallel_et.cli.{name}").main(Ranks(), [])
        except FoundError as found:
            return found.args[0]
    raise LookupError(f"parallel_et.cli.{name}: expected a Parser, found none")


def command(parser: Parser, name: str) -> Iterator[str]:
    """The parts of a command's section."""
    with patch.dict(os.environ, {"COLUMNS": WIDTH}):
        usage = parser.format_usage().removeprefix("usage: ").rstrip()
    example = (parser.epilog or "").partition("\n")[2]
    yield f"## {name}"
    yield escape(parser.description or "")
    yield fenced(usage.replace("\n       ", "\n"))
    for group in parser._action_groups:
        rows = [f"| {title(action)} | {meaning(action)} |" for action in group._group_actions if action.dest != "help"]
        if rows:
            yield "\n".join([f"| {HEADS.get(group.title or '', group.title)} | |", "|---|---|", *rows])
    yield "For example:"
    yield fenced("\n".join(line.removeprefix("  ") for line in example.splitlines()))


def title(action: Any) -> str:
    """An option with what it takes."""
    metavar = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if action.choices is not None:
        metavar = "\\|".join(map(str, action.choices))
    takes = [] if action.nargs == 0 else [metavar] if isinstance(metavar, str) else list(metavar)
    return f"`{' '.join([*action.option_strings[:1], *takes])}`"


def meaning(action: Any) -> str:
    """What an option does."""
    required = " (required)" if action.option_strings and action.required else ""
    return escape((action.help or "") % vars(action)) + required


def fenced(text: str) -> str:
    """Text as it is."""
    return f"```text\n{text}\n```"


def escape(text: str) -> str:
    """Plain text that Markdown leaves alone, also in a cell of a table."""
    for char, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("$", "\\$")):
        text = text.replace(char, instead)
    return text


if __name__ == "__main__":
    print({"job": job, "commands": commands}[sys.argv[1]]())
