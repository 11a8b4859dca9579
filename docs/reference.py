"""Generation of the reference pages in Markdown, from the schema of the job file and the parsers of the commands.

``python docs/reference.py job`` and ``python docs/reference.py commands`` print the pages.
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
from parallel_et.core.options import ModelOptions, options_class
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
"""Width of the usage lines in characters."""


class Key(NamedTuple):
    """A row of a table of keys of the job file."""

    name: str
    kind: str
    default: str
    range: str
    description: str


class ParserFoundError(Exception):
    """Carries the parser out of a command, before the command uses it."""


def job() -> str:
    """Return the reference of the job file, section by section."""
    known: dict[type[Model], list[str]] = {}
    for name in MODELS.names():
        known.setdefault(MODELS.find(name), []).append(name)
    names = {model: " or ".join(f'"{name}"' for name in some) for model, some in known.items()}
    parts = ["## [model]", format_table(keys(ModelOptions)), "The models:"]
    parts += ["\n".join(f"* {name}: {lead(model)}" for model, name in names.items())]
    parts += extra_keys({f"name = {name}": options_class(model) for model, name in names.items()}, ModelOptions)
    sources = {f'source = "{name}"': source.Options for name, source in generators().items()}
    parts += ["## [data]", format_table(keys(DataOptions))]
    parts += extra_keys({"a file": FileOptions, **sources}, DataOptions)
    parts += ["## [inference]", "The keys depend on the scheme."]
    parts += extra_keys({f'scheme = "{name}"': SCHEMES.find(name).Options for name in SCHEMES.names()}, Section)
    parts += ["## [anneal]", format_table(keys(Anneal))]
    parts += extra_keys({f"name = {name}": keys_for(model) for model, name in names.items()}, Anneal)
    return "\n\n".join([*parts, "## [run]", format_table(keys(Run))]) + "\n"


def extra_keys(kinds: Mapping[str, type[Section]], base: type[Section]) -> list[str]:
    """List the keys that each kind adds to the keys of ``base``. Kinds with the same keys share a heading."""
    titles: dict[str, list[str]] = {}
    for title, section in kinds.items():
        if added := keys(section, but=tuple(base.model_fields)):
            titles.setdefault(format_table(added), []).append(title)
    return [part for rows, some in titles.items() for part in (f"### With {', '.join(some)}", rows)]


def keys(section: type[Section], place: str = "", but: Sequence[str] = ()) -> list[Key]:
    """Return the keys of a section and of its tables."""
    return [key for name, field in section.model_fields.items() if name not in but for key in _keys(field, place, name)]


def _keys(field: FieldInfo, place: str, name: str) -> Iterator[Key]:
    inner = list(sections(field.annotation))
    kind = " or ".join(["table"] * bool(inner) + type_names(field))
    default = "required" if field.is_required() else format_default(field.default)
    description = field.description or (lead(inner[0]) if inner else "")
    yield Key(f"{place}{name}", kind, default, format_range(field), description)
    for section in inner:
        yield from keys(section, f"{place}{name}.")


def sections(kind: Any) -> Iterator[type[Section]]:
    """Yield the tables among the types of an annotation."""
    if isinstance(kind, type) and issubclass(kind, Section):
        yield kind
    for part in get_args(kind):
        yield from sections(part)


def type_names(field: FieldInfo) -> list[str]:
    """Return the names of the types of a key, without tables."""
    words = [word for word in field.metadata if isinstance(word, str)]
    return words or list(dict.fromkeys(_type_names(field.annotation)))


def _type_names(kind: Any) -> Iterator[str]:
    if kind in PLAIN:
        yield PLAIN[kind]
    elif get_origin(kind) is Literal:
        yield " or ".join(map(json.dumps, get_args(kind)))
    elif get_origin(kind) is list:
        yield f"list of {' or '.join(_type_names(get_args(kind)[0]))}"
    else:
        for part in get_args(kind):
            yield from _type_names(part)


def format_default(default: Any) -> str:
    """Format a default as in a job file."""
    return "" if default is None or isinstance(default, Section) else f"`{json.dumps(default)}`"


def format_range(field: FieldInfo) -> str:
    """Format the range of a key."""
    found = {name: getattr(part, name) for part in field.metadata for name, _ in LIMITS if hasattr(part, name)}
    text = " ".join(f"{words} {format_limit(found[name])}" for name, words in LIMITS if name in found)
    return text.replace(" below", ", below")


def format_limit(number: float) -> str:
    """Format a limit."""
    return "2^63" if number == 2**63 else f"{number:,}" if isinstance(number, int) else f"{number:g}"


def format_table(rows: Sequence[Key]) -> str:
    """Format keys as a table."""
    lines = ["| key | type | default | range | |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [f"`{row.name}`", escape(row.kind), row.default, escape(row.range), escape(row.description)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def commands() -> str:
    """Return the reference of all commands, with options and examples."""
    return "\n\n".join(part for name in COMMANDS for part in command(parser_of(name), name)) + "\n"


def parser_of(name: str) -> Parser:
    """Return the parser of a command. The command runs until it parses its arguments."""

    def stop(parser: Parser, *args: object) -> None:
        raise ParserFoundError(parser)

    with patch.object(Parser, "parse_args", stop):
        try:
            import_module(f"parallel_et.cli.{name}").main(Ranks(), [])
        except ParserFoundError as found:
            return found.args[0]
    raise LookupError(f"parallel_et.cli.{name}: expected a Parser, found none")


def command(parser: Parser, name: str) -> Iterator[str]:
    """Yield the parts of the section of a command."""
    with patch.dict(os.environ, {"COLUMNS": WIDTH}):
        usage = parser.format_usage().removeprefix("usage: ").rstrip()
    example = (parser.epilog or "").partition("\n")[2]
    yield f"## {name}"
    yield escape(parser.description or "")
    yield fence(usage.replace("\n       ", "\n"))
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        rows = [f"| {format_option(action)} | {describe_option(action)} |" for action in actions]
        if rows:
            yield "\n".join([f"| {HEADS.get(group.title or '', group.title)} | |", "|---|---|", *rows])
    yield "For example:"
    yield fence("\n".join(line.removeprefix("  ") for line in example.splitlines()))


def format_option(action: Any) -> str:
    """Format an option with its values."""
    metavar = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if action.choices is not None:
        metavar = "\\|".join(map(str, action.choices))
    takes = [] if action.nargs == 0 else [metavar] if isinstance(metavar, str) else list(metavar)
    return f"`{' '.join([*action.option_strings[:1], *takes])}`"


def describe_option(action: Any) -> str:
    """Return the help text of an option."""
    required = " (required)" if action.option_strings and action.required else ""
    return escape((action.help or "") % vars(action)) + required


def fence(text: str) -> str:
    """Format preformatted text."""
    return f"```text\n{text}\n```"


def escape(text: str) -> str:
    """Escape the special characters of Markdown, also for a cell of a table."""
    for char, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("$", "\\$")):
        text = text.replace(char, instead)
    return text


if __name__ == "__main__":
    print({"job": job, "commands": commands}[sys.argv[1]]())
