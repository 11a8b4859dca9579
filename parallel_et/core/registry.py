"""Models and schemes by name: one file each in their room, others that packages bring, and files of one's own."""

from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from parallel_et.control.paths import kind_of
from parallel_et.core.contract import check_contract, explain_import
from parallel_et.errors import UserError

LARGEST = 1 << 20
"""Bytes of a file of one's own."""
SHOWN = 200
"""Characters of its name that a message shows."""


class Registry:
    """All that is known of one kind; a module is imported, which declares its kernels, only when it is asked for.

    Parameters
    ----------
    room : package that has a module for each; also the group of entry points by which other packages add theirs
    word : name of the class in a module
    base : what it is a subclass of
    aliases : other names
    """

    def __init__(self, room: str, word: str, base: type, aliases: dict[str, str] | None = None) -> None:
        self.room, self.word, self.base, self.aliases = room, word, base, aliases or {}
        self._own: dict[str, Any] = {}

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self._here(), *self.aliases, *self._own, *entry_points(group=self.room).names})

    def _here(self) -> list[str]:
        return [module.name for module in iter_modules(import_module(self.room).__path__) if not module.ispkg]

    def find(self, name: str) -> Any:
        """The class of that name; KeyError if there is none."""
        name = self.aliases.get(name, name)
        if name in self._own:
            return self._checked(self._own[name])
        if name in self._here():
            return getattr(import_module(f"{self.room}.{name}"), self.word)
        for point in entry_points(group=self.room, name=name):
            return self._checked(point.load())
        raise KeyError(name)

    @staticmethod
    def _checked(kind: Any) -> Any:
        check_contract(kind)
        return kind

    def register(self, name: str, kind: Any) -> None:
        """Make a class of a script known in this process."""
        self._own[name] = kind

    def of_text(self, text: bytes, path: str) -> Any:
        """The class of a file of one's own, which is executed; UserError if that fails or there is none."""
        module = ModuleType(f"{self.word.lower()}_{sha256(text).hexdigest()[:16]}")
        module.__file__ = str(path)
        try:
            exec(compile(text, path, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:  # whatever a stranger's code raises
            line = _line(error, path)
            found = f"{type(error).__name__}: {' '.join(str(error).split())[:SHOWN]}"
            raise UserError(f"{path}{line}: expected Python that runs, found {found}{explain_import(error)}") from None
        kind = getattr(module, self.word, None)
        if not (isinstance(kind, type) and issubclass(kind, self.base)):
            raise UserError(f"{path}: expected {self.word} = a subclass of {self.base.__name__}, found {kind!r:.60}")
        return self._checked(kind)


def read_source(path: str) -> bytes:
    """The bytes of a file of one's own."""
    shown = ascii(path)[1:-1][:SHOWN]
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise UserError(f"{shown}: expected a Python file, found {kind_of(path)}")
        with open(path, "rb") as file:
            text = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{shown}: expected a Python file, found {getattr(error, 'strerror', error)}") from None
    if len(text) > LARGEST:
        raise UserError(f"{shown}: expected a Python file of at most {LARGEST} bytes, found more")
    return text


def _line(error: BaseException, path: str) -> str:
    """Where in a file an error came up, as far as that can be told."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f":{lines[-1]}" if lines else ""
