"""Models and schemes by name: modules of a package, entry points of other packages, and files of users."""

from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from parallel_et.control.paths import describe_path
from parallel_et.core.contract import check_contract, explain_import
from parallel_et.errors import UserError

MAX_FILE_BYTES = 1 << 20
"""Largest size of a user's file."""
SHOWN_CHARACTERS = 200
"""Largest number of characters of a path, or of an error, in a message."""


class Registry:
    """All models, or all schemes, by name. A module is imported at its first use, because that declares its kernels.

    Parameters
    ----------
    package : package with one module for each class; also the group of entry points of other packages
    class_name : name of the class in a module
    base : base class
    aliases : alternative names, each with the name it stands for
    """

    def __init__(self, package: str, class_name: str, base: type, aliases: dict[str, str] | None = None) -> None:
        self.package, self.class_name, self.base, self.aliases = package, class_name, base, aliases or {}
        self._own: dict[str, Any] = {}

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted({*self._modules(), *self.aliases, *self._own, *entry_points(group=self.package).names})

    def _modules(self) -> list[str]:
        return [module.name for module in iter_modules(import_module(self.package).__path__) if not module.ispkg]

    def find(self, name: str) -> Any:
        """Return the class of a name; KeyError if there is none."""
        name = self.aliases.get(name, name)
        if name in self._own:
            return self._checked(self._own[name])
        if name in self._modules():
            return getattr(import_module(f"{self.package}.{name}"), self.class_name)
        for point in entry_points(group=self.package, name=name):
            return self._checked(point.load())
        raise KeyError(name)

    @staticmethod
    def _checked(cls: Any) -> Any:
        check_contract(cls)
        return cls

    def register(self, name: str, cls: Any) -> None:
        """Register a class of a script in this process."""
        self._own[name] = cls

    def load_text(self, text: bytes, path: str) -> Any:
        """Execute a user's file and return its class; UserError if that fails or the class is missing."""
        module = ModuleType(f"{self.class_name.lower()}_{sha256(text).hexdigest()[:16]}")
        module.__file__ = str(path)
        try:
            exec(compile(text, path, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:  # a user's file may raise anything
            line = _line(error, path)
            found = f"{type(error).__name__}: {' '.join(str(error).split())[:SHOWN_CHARACTERS]}"
            raise UserError(f"{path}{line}: expected Python that runs, found {found}{explain_import(error)}") from None
        cls = getattr(module, self.class_name, None)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise UserError(
                f"{path}: expected {self.class_name} = a subclass of {self.base.__name__}, found {cls!r:.60}"
            )
        return self._checked(cls)


def read_source(path: str) -> bytes:
    """Return the bytes of a user's file."""
    shown = ascii(path)[1:-1][:SHOWN_CHARACTERS]
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise UserError(f"{shown}: expected a Python file, found {describe_path(path)}")
        with open(path, "rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{shown}: expected a Python file, found {getattr(error, 'strerror', error)}") from None
    if len(text) > MAX_FILE_BYTES:
        raise UserError(f"{shown}: expected a Python file of at most {MAX_FILE_BYTES} bytes, found more")
    return text


def _line(error: BaseException, path: str) -> str:
    """Return the line of a file where an error was raised, as ":12"; empty if the line is unknown."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f":{lines[-1]}" if lines else ""
