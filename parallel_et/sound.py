"""Whether what was read back of a run can be what a run has written: its parameters and its course fit its job."""

import tomllib
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parallel_et import models
from parallel_et.errors import UserError
from parallel_et.job import Job, check_job
from parallel_et.models.base import SMALLEST, Model

if TYPE_CHECKING:
    from parallel_et.io.result import Result

LARGEST = 1e150
"""Of a parameter: its square is a number."""
TEXTS = ("job", "name", "data fingerprint", "start")
COUNTS = ("seed", "N", "D", "iteration", "calm", "restarts")
"""What every result says of itself, and ``seconds checkpoints``."""


class Limits(NamedTuple):
    """What an array must be like: its shape, where ``None`` is any size but 0, and its least and largest value.

    ``inside`` leaves out these two; ``any`` lets everything pass, also what is no number or not finite.
    """

    shape: tuple[int | None, ...]
    low: float = -np.inf
    high: float = np.inf
    inside: bool = False
    any: bool = False

    def __str__(self) -> str:
        words = "numbers" if self.any else "finite numbers"
        if self.low > -np.inf:
            words += f" above {self.low:g}" if self.inside else f" of {self.low:g} or more"
        if self.high < np.inf:
            words += f"{' and' * (self.low > -np.inf)} {'below' if self.inside else 'up to'} {self.high:g}"
        return words

    def outside(self, values: np.ndarray) -> float | None:
        """A value that is none here, if there is one."""
        for value in (values.min(), values.max()) if values.size and not self.any else ():  # both NaN if one is
            within = self.low < value < self.high if self.inside else self.low <= value <= self.high
            if not within or not np.isfinite(value):
                return float(value)
        return None


def parameters(model: type[Model], dims: int | None, causes: int | None) -> dict[str, Limits]:
    """The parameters of a model."""
    return {
        "W": Limits((dims, causes), 0.0 if model.nonnegative else -LARGEST, LARGEST),
        "sigma": Limits((), SMALLEST, LARGEST),
        "pi": Limits((), 0.0, 1.0, inside=True),
    }


def check_arrays(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, Limits], where: str) -> None:
    """Refuse arrays of which one is missing, has another shape, or values that it must not have."""
    for name, limits in wanted.items():
        if name not in arrays:
            raise UserError(f"{where}/{name}: expected {limits}, found nothing there")
        found = arrays[name]
        if len(found.shape) != len(limits.shape) or not all(
            n > 0 if size is None else n == size for n, size in zip(found.shape, limits.shape, strict=True)
        ):
            shape = " x ".join("any" if size is None else str(size) for size in limits.shape) or "a single number"
            there = " x ".join(map(str, found.shape)) or "a single number"
            raise UserError(f"{where}/{brief(name)}: expected the shape {shape}, found {there}")
        if (bad := limits.outside(found)) is not None:
            raise UserError(f"{where}/{brief(name)}: expected {limits}, found {bad:g}")


def check_result(result: "Result", where: str) -> None:
    """Refuse the result or checkpoint of a file if anything in it does not fit its own job."""
    about = result.about
    check_attributes(about, where)
    job = job_of(about, where)
    N, D, H, done = int(about["N"]), int(about["D"]), job.model.causes, int(about["iteration"])
    model = models.known()[job.model.name]
    params = parameters(model, D, H)
    check_arrays(result.params, params, f"{where}: /params")
    if more := sorted(set(result.params) - set(params)):
        raise UserError(f"{where}: /params: expected {', '.join(params)}, found also {brief(more[0])}")

    single = {name: limits._replace(shape=(done,)) for name, limits in params.items() if not limits.shape}
    course = {
        "free_energy": Limits((done,)),
        "temperature": Limits((done,)),
        "points_used": Limits((done,), 0, N),
        "unused_causes": Limits((done,), 0, H),
        **single,
    }
    others = {name: Limits((done,), any=name in model.knobs) for name in result.history if name not in course}
    check_arrays(result.history, (course if done else {}) | others, f"{where}: /history")

    if snapshots := result.snapshots:
        k = len(np.atleast_1d(snapshots.get("iteration", ())))
        check_arrays(
            snapshots,
            {"iteration": Limits((k,), 1, done), "W": params["W"]._replace(shape=(k, D, H))},
            f"{where}: /snapshots",
        )
        if snapshots["iteration"].dtype.kind not in "iu" or (np.diff(snapshots["iteration"]) <= 0).any():
            raise UserError(f"{where}: /snapshots/iteration: expected rising numbers, found others")
    truth = {name: Limits(values.shape) for name, values in result.truth.items()}
    check_arrays(result.truth, truth | ({"W": Limits((D, None))} if "W" in truth else {}), f"{where}: /truth")


def check_attributes(about: Mapping[str, Any], where: str) -> None:
    """Refuse attributes that are missing, of another kind, or could not be written down again."""
    for names, kinds, words in (
        (TEXTS, (str,), "a text"),
        (COUNTS, (int, np.integer), "a whole number of 0 or more"),
        (("seconds checkpoints",), (int, float, np.number), "a number of 0 or more"),
    ):
        for name in names:
            value = about.get(name)
            if not isinstance(value, kinds) or not (isinstance(value, str) or 0 <= value < np.inf):
                raise UserError(f"{where}: attribute {name}: expected {words}, found {brief(value)}")
    for name in ("N", "D"):
        if not about[name]:
            raise UserError(f"{where}: attribute {name}: expected a positive number, found 0")
    for name, value in about.items():
        for text in (name, *([value] if isinstance(value, str) else [])):
            if text != text.encode(errors="replace").decode():
                raise UserError(f"{where}: attribute {brief(name)}: expected a text in UTF-8, found other bytes")
    try:
        datetime.fromisoformat(about["start"])
    except ValueError:
        raise UserError(f"{where}: attribute start: expected a time, found {brief(about['start'])}") from None


def job_of(about: Mapping[str, Any], where: str) -> Job:
    """The job that a file tells of in its attributes; its first mistake, if it has one, as one line."""
    place = f"{where}: attribute job"
    try:
        table = tomllib.loads(about["job"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{place}: expected a text, found {brief(about.get('job'))}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected TOML, found a mistake: {brief(error)}") from None
    try:
        return check_job(table, str(about.get("name", "job")), place)
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None


def brief(value: object) -> str:
    """For a message: in one line, and not too long."""
    text = "nothing" if value is None else ascii(str(value))[1:-1]
    return text if len(text) <= 60 else f"{text[:57]}…"
