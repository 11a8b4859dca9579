"""Whether what was read back of a run can be what a run has written: its parameters and its course fit its job."""

import tomllib
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_et.core.limits import LARGEST, Limits, brief, check_arrays, limits_of
from parallel_et.errors import UserError
from parallel_et.runs.job import Job, UntrustedError, check_job

if TYPE_CHECKING:
    from parallel_et.runs.result import Result

TEXTS = ("job", "name", "data fingerprint", "start")
COUNTS = ("seed", "N", "D", "iteration", "calm", "cooled", "restarts")
"""What every result says of itself, and ``seconds checkpoints``."""


def check_result(result: "Result", where: str) -> None:
    """Refuse the result or checkpoint of a file if anything in it does not fit its own job.

    Of a model or scheme of a file, which reading a run does not execute, only numbers are looked at.
    """
    about = result.about
    check_attributes(about, where)
    N, D, done = int(about["N"]), int(about["D"]), int(about["iteration"])
    data = {name: Limits((D,)) for name in result.data}
    try:
        job = job_of(about, where, {})
        data = {"mean": Limits((D,))} if job.data.centre else {}
        model = job.Model(job.model, D)
        params, causes, knobs = limits_of(model), model.latents.atoms, tuple(model.knobs)
        scheme = job.Scheme(job.inference, model.latents)
        own = {**scheme.initial(), **scheme.selection.initial(N, D)}
        params |= {name: Limits(value.shape) for name, value in own.items()}
        averages = {
            f"{kind} {stage}/{name}": Limits(shape)
            for kind, learner in (("model", model), ("scheme", scheme), ("selection", scheme.selection))
            for number, stage in enumerate(learner.stages)
            if number == 0 or any(name.startswith(f"{kind} {stage}/") for name in result.averages)
            for name, shape in {**{n: one.shape for n, one in learner.sums(stage).items()}, "points": ()}.items()
        }
    except UntrustedError:
        params, causes, knobs = {name: Limits(v.shape, -LARGEST, LARGEST) for name, v in result.params.items()}, N, ()
        averages = {name: Limits(v.shape) for name, v in result.averages.items()}
    check_arrays(result.params, params, f"{where}: /params")
    if more := sorted(set(result.params) - set(params)):
        raise UserError(f"{where}: /params: expected {', '.join(params)}, found also {brief(more[0])}")
    check_arrays(result.data, data, f"{where}: /data")
    if more := sorted(set(result.data) - set(data)):
        raise UserError(f"{where}: /data: expected {', '.join(data) or 'nothing'}, found also {brief(more[0])}")

    if result.averages:
        check_arrays(result.averages, averages, f"{where}: /averages")

    told = {name: limits for name, limits in params.items() if len(limits.shape) < 2}
    ends = {f"{name}{end}": told[name] for name in told if told[name].shape for end in ("_low", "_high")}
    course = {
        "free_energy": Limits((done,)),
        "temperature": Limits((done,)),
        "points_used": Limits((done,), 0, N),
        "unused_causes": Limits((done,), 0, causes),
        **{name: limits._replace(shape=(done,)) for name, limits in (told | ends).items()},
    }
    others = {name: Limits((done,), any=name in knobs or not knobs) for name in result.history if name not in course}
    if "holdout_evidence" in others:  # not looked at after every iteration
        others["holdout_evidence"] = Limits((done,), any=True)
    check_arrays(result.history, (course if done else {}) | others, f"{where}: /history")

    if snapshots := result.snapshots:
        k = len(np.atleast_1d(snapshots.get("iteration", ())))
        arrays = {name: limits._replace(shape=(k, *limits.shape)) for name, limits in params.items() if limits.shape}
        check_arrays(snapshots, {"iteration": Limits((k,), 1, done), **arrays}, f"{where}: /snapshots")
        if snapshots["iteration"].dtype.kind not in "iu" or (np.diff(snapshots["iteration"]) <= 0).any():
            raise UserError(f"{where}: /snapshots/iteration: expected rising numbers, found others")
    truth = {name: Limits(values.shape) for name, values in result.truth.items()}
    if "T" in truth:  # masks and features
        rows, pixels = (max(1, len(np.atleast_1d(result.truth.get(name, 0)))) for name in ("T", "W"))
        pixels = pixels if pixels <= rows <= D else D // rows  # features of each pixel of an object, or of all of them
        truth |= {"W": Limits((pixels, None)), "T": Limits((rows, *result.truth["W"].shape[1:]))}
    elif "W" in truth:
        truth["W"] = Limits((D, None))
    check_arrays(result.truth, truth, f"{where}: /truth")


def check_attributes(about: Mapping[str, Any], where: str) -> None:
    """Refuse attributes that are missing, of another kind, or could not be written down again."""
    for names, kinds, words in (
        (TEXTS, (str,), "a text"),
        (COUNTS, (int, np.integer), "a whole number of 0 or more"),
        (("seconds checkpoints",), (int, float, np.number), "a number of 0 or more"),
    ):
        for name in names:
            value = about.get(name, 0 if name == "cooled" else None)  # which runs had not always
            if not isinstance(value, kinds) or not (isinstance(value, str) or 0 <= value < np.inf):
                raise UserError(f"{where}: attribute {name}: expected {words}, found {brief(value)}")
    if not isinstance(about.get("best", 0.0), float | np.floating) or np.isnan(about.get("best", 0.0)):
        raise UserError(f"{where}: attribute best: expected a number, found {brief(about['best'])}")
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


def job_of(about: Mapping[str, Any], where: str, files: Mapping[str, str]) -> Job:
    """The job that a file tells of in its attributes; its first mistake, if it has one, as one line.

    Of models and schemes of files only those are executed that are among ``files``, by section.
    """
    place = f"{where}: attribute job"
    try:
        table = tomllib.loads(about["job"])
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{place}: expected a text, found {brief(about.get('job'))}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected TOML, found a mistake: {brief(error)}") from None
    try:
        return check_job(table, str(about.get("name", "job")), place, files)
    except UntrustedError:
        raise
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None
