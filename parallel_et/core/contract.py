"""The version of the contract with user-defined models and schemes, and messages for files of older versions.

Within a version, a class that follows the contract keeps working. The contract is ``core/model.py``,
``core/scheme.py`` and ``core/capabilities.py``.
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
        "log_singles": "View.log_singletons",
        "select": "View.select",
        "over_table": "View.over_table",
        "over_listed": "View.over_listed",
        "redraw": "View.redraw",
        "reconstruct": "View.reconstruct",
        "sample": "View.sample",
        "best": "View.best",
        "begin": "View.initial_chains",
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
        "carried": "adjust_sums",
        "pictures": "cause_images",
        "knobs": "schedules",
    },
    Scheme: {
        "prepare": "evaluator",
        "initial": "initial_params",
        "keep": "initial_point_states",
        "collect": "evaluator",
        "most": "max_active",
        "words": "description",
        "alone": "single_atoms",
        "raised": "extended",
        "selected": "candidates_of",
        "alike": "row_independent",
    },
}
"""Members of version 1 and their names in version 2, by base class."""
IMPORTS = {
    "Sum": "Statistic",
    "solve_fields": "settings.algebra.solve_fields",
    "Knobs": "Settings",
    "Knob": "OwnSchedule",
    "divided": "divide_or_keep",
    "with_none": "with_empty_row",
    "Learner": "TrainablePart",
}
"""Names that files of version 1 import, and their names in version 2."""


def check_contract(cls: type) -> None:
    """Raise a UserError if a class follows an older contract or lacks a method."""
    for base, renamed in RENAMED.items():
        if issubclass(cls, base):
            own = {name for one in cls.__mro__ if one not in base.__mro__ for name in vars(one)}
            if old := [f"{name} (now {new})" for name, new in renamed.items() if name in own]:
                expected = f"a {base.__name__.lower()} for version {VERSION} of the contract"
                found = f"members of version 1: {', '.join(old)}; docs/how-to/adding-a-model.md describes the changes"
                raise UserError(f"{cls.__name__}: expected {expected}, found {found}")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UserError(f"{cls.__name__}: expected a method {missing[0]}, found none")


def explain_import(error: BaseException) -> str:
    """Return a hint for an import of a name of version 1; empty for any other error."""
    name = str(error).partition("'")[2].partition("'")[0] if isinstance(error, ImportError) else ""
    return f"; it is now {IMPORTS[name]}, see docs/how-to/adding-a-model.md" if name in IMPORTS else ""
