"""The version of the contract with models and schemes of one's own, and what to change in files of an older one.

Within a version, a class that keeps to the contract keeps working. ``core/model.py``, ``core/scheme.py`` and
``core/capabilities.py`` are the contract.
"""

from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.errors import UserError

VERSION = 2
RENAMED: dict[type, dict[str, str]] = {
    Model: {
        "sums": "statistics",
        "start": "initial_value",
        "prepare": "evaluator",
        "observe": "View",
        "collect": "View.accumulate",
        "log_states": "View.log_joint",
        "select": "View.select",
        "over_table": "View.over_table",
        "over_listed": "View.over_listed",
        "redraw": "View.redraw",
        "reconstruct": "View.reconstruct",
        "log_singles": "View.log_singles",
        "sample": "View.sample",
        "best": "View.best",
        "begin": "View.begin",
        "rows_for": "points_for_fields",
        "from_rows": "fields_from_points",
        "from_directions": "fields_from_directions",
        "beside": "propose_fields",
        "released": "release_fields",
        "keys_told_by": "keys_in",
        "beside_moments": "values_with_moments",
        "takes": "has_stage",
        "dealt": "distributed",
        "alike": "row_independent",
    },
    Scheme: {
        "prepare": "evaluator",
        "initial": "initial_params",
        "keep": "initial_point_states",
        "collect": "evaluator",
        "alone": "single_atoms",
        "raised": "extended",
        "selected": "candidates_of",
        "alike": "row_independent",
    },
}
"""Members of version 1 and what stands in their place, by base class."""
IMPORTS = {"Sum": "Statistic", "solve_fields": "settings.algebra.solve_fields", "Knobs": "Settings"}
"""Names that files of version 1 import, and what stands in their place."""


def check_contract(kind: type) -> None:
    """Raise a UserError if a class is written against an older contract, or lacks a method."""
    for base, renamed in RENAMED.items():
        if issubclass(kind, base):
            own = {name for one in kind.__mro__ if one not in base.__mro__ for name in vars(one)}
            if old := [f"{name} (now {new})" for name, new in renamed.items() if name in own]:
                expected = f"a {base.__name__.lower()} for version {VERSION} of the contract"
                found = f"members of version 1: {', '.join(old)}; docs/how-to/adding-a-model.md says how they are written"
                raise UserError(f"{kind.__name__}: expected {expected}, found {found}")
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise UserError(f"{kind.__name__}: expected a method {missing[0]}, found none")


def explain_import(error: BaseException) -> str:
    """Return what to change in a file that imports a name of version 1; empty for any other error."""
    name = str(error).partition("'")[2].partition("'")[0] if isinstance(error, ImportError) else ""
    return f"; it is now {IMPORTS[name]}, docs/how-to/adding-a-model.md says more" if name in IMPORTS else ""
