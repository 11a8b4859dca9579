"""Noise from 1e-9 to 1e9 of the data: evidence, posterior and M-step of one iteration against ``judge``.

A quantity is right if its relative error is at most ``TOLERANCE``. A wrong quantity is "reported" if a line that
``train`` or ``fit`` prints names the quantity, else "silent". There must be no silent errors. Notes about initial
values that do not fit the data do not count, because they do not describe the result. A job may also be refused.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import every_model
import numpy as np
from long_double import JUDGES, LONG
from metamorphic import Case, job_of, suits
from problems import iterate, problem_of, settings_at

from parallel_et.core.capabilities import filled
from parallel_et.errors import UserError
from parallel_et.inference.diagnostics import data_warnings, diagnostics, limits
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import check_job
from parallel_et.parallel.communicator import Ranks

N, D, H = 40, 6, 3
TOLERANCE = 1e-8
FACTORS = tuple(10.0**power for power in range(-9, 10))
SIZE = 6.0
"""Size of the data."""
NO_SIZES = np.zeros((D, 1))
EVIDENCE, POSTERIOR, REFUSED = "evidence", "posterior", "job"
OF_THE_START = "begins with"
"""Text of notes about initial values that do not fit the data."""


class Verdict(NamedTuple):
    """The verdict on one quantity.

    Attributes
    ----------
    error : difference, relative to the size of the quantity
    reported : whether a printed line names the quantity
    """

    model: str
    setting: str
    factor: float
    seed: int
    quantity: str
    error: float
    reported: bool

    @property
    def word(self) -> str:
        if self.quantity == REFUSED:
            return "refused"
        return "right" if self.error <= TOLERANCE else "reported" if self.reported else "silent"

    def __str__(self) -> str:
        place = f"{self.model}, {self.setting}, {self.factor:g}, seed {self.seed}"
        return f"{place}: {self.quantity} is wrong by {self.error:.2g}"


def settings(case: Case, seed: int, factors: Sequence[float] = FACTORS) -> Iterator[tuple[str, float, Case]]:
    """Yield cases with a name and the size of their noise relative to the data."""
    model, rng = case.model, np.random.default_rng([seed, 5])
    noise = "var" if "var" in model.params else "sigma"
    usual = with_noise(case, 1.0)
    Y = model.draw(usual.start, rng, N)[0]
    begin = {**usual.start, "W": usual.start["W"] * (1 + 0.05 * rng.standard_normal(usual.start["W"].shape))}
    for factor in factors:
        other = with_noise(replace(case, Y=Y, start=begin), factor * SIZE)
        yield "another noise", factor, other
        if factor <= 1:
            fitting = with_noise(case, factor * SIZE)
            yield "the noise of the data", factor, replace(fitting, Y=model.draw(fitting.start, rng, N)[0])
        if noise == "var":
            with_reg = replace(usual, Y=Y, start=begin).with_keys("model", reg=(factor * SIZE) ** 2)
            yield "reg", factor, with_reg
    if "W" in model.params and model.params["W"].axes == "DH":
        for name, unit, move in (
            ("one dimension in another unit", 1e8, 0.0),
            ("one dimension far away", 3600.0, 1.7e9),
        ):
            units, moves = np.ones(D), np.zeros(D)
            units[2], moves[2] = unit, move
            start = {**begin, "W": begin["W"] * units[:, None] + moves[:, None] * (noise == "var")}
            for factor in (1 / SIZE, unit / SIZE):
                yield name, factor, with_noise(replace(case, Y=Y * units + moves, start=start), factor * SIZE)


def with_noise(case: Case, sigma: float) -> Case:
    """Return the case with noise of the standard deviation sigma."""
    model = case.model
    if "var" in model.params:
        return replace(case, start={**case.start, "var": filled(model, "var", sigma**2)})
    return replace(case, start={**case.start, "sigma": np.array(sigma)})


def case_for(model: dict[str, Any], seed: int) -> Case:
    """Return a case of one iteration over all states, from parameters of the model."""
    job = job_of(model, "exact", seed)
    job = {**job, "model": {**job["model"], "causes": H, **({"reg": 0.0} if model.get("name") == "gmm" else {})}}
    case = Case({**job, "anneal": {"iterations": 1, "temperature": 1.0}}, np.empty((0, D)), {})
    return replace(case, start=every_model.begin(case.model, N, np.random.default_rng([seed, 4])))


def judged(model: dict[str, Any], seed: int, factors: Sequence[float] = FACTORS) -> Iterator[Verdict]:
    """Yield all verdicts of a model for a seed; none for a model without a judge."""
    name = model.get("name", every_model.label(model))
    if name not in JUDGES or model.get("noise", "gauss") != "gauss" or not suits(job_of(model, "exact", 0)):
        return
    for setting, factor, case in settings(case_for(model, seed), seed, factors):
        try:
            errors, lines = compared(case, JUDGES[name](case.model))
        except UserError:
            errors, lines = {REFUSED: np.inf}, []
        for quantity, error in errors.items():
            yield Verdict(every_model.label(model), setting, factor, seed, quantity, error, reported(quantity, lines))


def reported(quantity: str, lines: list[str]) -> bool:
    """Return whether a line names a quantity, apart from notes about initial values."""
    words = [line.replace(",", " ").replace(":", " ").split() for line in lines if OF_THE_START not in line]
    return any(quantity in some for some in words)


def compared(case: Case, judge: Any) -> tuple[dict[str, float], list[str]]:
    """Return the relative error of each quantity, and the printed lines if one is wrong."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        problem, _ = problem_of(case.job, case.Y)
        begin = {key: np.array(value, order="F") for key, value in problem.model.constrain(case.start).items()}
        inference = Inference(problem.model, problem.scheme, begin, ["evidence", "means"])
        found = inference.block(case.Y)
        new, _ = iterate(problem, Ranks(), begin, settings_at(problem, 0, begin))
        params = {key: np.asarray(value, LONG) for key, value in case.start.items()}
        Y = np.asarray(case.Y, LONG)
        F, q = judge.infer(params, Y)
        right = judge.maximise(params, Y, q, {key: np.asarray(value, LONG) for key, value in new.items()})
        errors = {
            EVIDENCE: float((abs(found["evidence"] - F) / np.maximum(abs(F), 1)).max()),
            POSTERIOR: relative(found["means"], judge.marginals(params, Y, q)),
        }
        if problem.model.valued:
            errors[POSTERIOR] = max(errors[POSTERIOR], relative(found["active"], q @ judge.values()))
        if all(np.isfinite(value).all() for value in right.values()):  # else the data do not determine all parameters
            errors |= {key: relative(new[key], value, abs(Y.T) * (key == "W")) for key, value in right.items()}
    lines = [str(warning.message) for warning in caught]
    if any(not error <= TOLERANCE for error in errors.values()):
        lines += data_warnings(problem, begin, check_job(case.job).model.name)
        lines += [f"diagnostics: {diagnostics(problem, Ranks(), new)}", limits(problem, new, float(F.mean()))]
    return errors, lines


def relative(found: np.ndarray, right: np.ndarray, sizes: np.ndarray = NO_SIZES) -> float:
    """Return the largest difference, relative to the largest value of a row; for matrices to those of row and column.

    ``sizes`` (D, N) are the magnitudes of the values whose means are the fields. Means of pure noise are smaller.
    """
    gap, size = abs(found - right), abs(right)
    if right.ndim == 3:
        deviation = np.sqrt(np.diagonal(size, axis1=1, axis2=2))
        size = deviation[:, :, None] * deviation[:, None]
    elif right.ndim == 2 and found.shape[0] == sizes.shape[0]:
        size = np.maximum(size.max(1), sizes.max(1))[:, None]
    elif right.ndim:
        size = size.max()
    return float(np.nan_to_num(gap / np.where(size > 0, size, 1), nan=np.inf).max())
