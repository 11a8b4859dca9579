"""Relations between two fits: data and initial values change together, and learned parameters must follow.

A ``Change`` changes a ``Case`` and undoes the change of the learned parameters. No expected values are needed, so all
models and schemes are tested on data of any size.

The tolerance is derived. A stable computation returns the exact result for inputs with relative errors of some
roundings. The tolerance is therefore the number of roundings times the conditioning. The conditioning is measured by a
fit of inputs that are moved by ``STEP``. A number is rounded once in each iteration for each point, dimension and cause
of its sum: ``ROUNDINGS`` times. Data at a distance from zero of m times their size have rounding errors that are m
times larger. Points and means are stored with such errors, ``MEAN_ROUNDINGS`` times, but the sums are of differences.

Between iterations parameters are stored, and rounded. A covariance of few points is almost singular, even if its points
and its initial value are moved. Its last digits then have more influence than the conditioning of the inputs shows.
If a relation seems broken, further fits move the stored parameters by ``PARAMETER_ROUNDINGS`` roundings.

If a decision (a candidate, a stored state, an order of fields) depends on the last digits, inputs moved by roundings
lead to another result. Such jumps are allowed, and further fits search for them if a relation seems broken.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import every_model
import numpy as np
from problems import problem_of

from parallel_et.em.loop import em
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.models import Binary, Poisson
from parallel_et.parallel.communicator import Ranks
from parallel_et.schemes import SCHEMES

N, D, H, ITERATIONS = 48, 6, 4, 3
EPS = 2.0**-52
ROUNDINGS = 4 * ITERATIONS * (N + D + H)
"""Roundings of a number, times 4 because the conditioning is not measured in the worst direction."""
MEAN_ROUNDINGS = 4 * 2 * ITERATIONS
"""Roundings of a mean that is far from zero, and of its subtraction from points, in all iterations, times 4."""
PARAMETER_ROUNDINGS = 4 * 8
"""Roundings of a stored parameter, times 4.

The eight roundings: product, sum in a block, sum over blocks, two differences of means, quotient by the weight,
addition of ``reg``, and storage.
"""
STEP = 1e-9
"""Relative movement of the inputs for the measurement of the conditioning."""

JUMPS = 8
"""Number of fits of inputs moved by roundings, and of fits that also move stored parameters, in search of jumps."""
MAX_DIFFERENCE = 1e300
"""Largest difference of finite results."""

SCHEMES_TRIED: dict[str, list[dict[str, Any]]] = {
    "exact": [{}],
    "et": [{"candidates": 3, "gamma": 2}, {"candidates": 3, "gamma": 2, "singletons": True}],
    # all states over the candidates are proposed, so there are no random draws
    "tv": [{"states": 5, "gamma": 3, "candidates": 3, "propose": {"select": 64}}],
    "hard": [{"gamma": 3, "candidates": 3, "propose": {"select": 64}}],
    "sample": [{"samples": 24, "chains": 2}, {"samples": 24, "chains": 2, "candidates": 3, "random": 1}],
}
"""Choices of the keys of [inference]. The seed determines the choice."""
DRAWN = {"sample"}
"""Schemes with random draws, which depend on the index of a point and the position of a cause in its candidates."""


@dataclass(frozen=True)
class Case:
    """A job, data (N, D) and initial parameters."""

    job: dict[str, Any]
    Y: np.ndarray
    start: dict[str, np.ndarray]

    @cached_property
    def model(self) -> Any:
        """The model of the job, without parameters."""
        checked = check_job(self.job)
        return checked.Model(checked.model, self.Y.shape[1])

    def learned(self, rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
        """Return the learned parameters, and the free energy of each iteration.

        With ``rng`` the parameters are moved by roundings after each iteration.
        """
        problem, _ = problem_of(self.job, self.Y)
        begin = {key: np.array(value, order="F") for key, value in problem.model.constrain(self.start).items()}
        state, free_energy = problem.initial_state(begin), []
        for _ in range(ITERATIONS):
            state, info = next(em(problem, Ranks(), state))
            free_energy.append(info.free_energy)
            if rng is not None:
                state = state._replace(params={key: rounded(value, rng) for key, value in state.params.items()})
        return {**state.params, "free_energy": np.array(free_energy)}

    def with_keys(self, section: str, **keys: Any) -> "Case":
        """Return the case with other keys in a section of the job."""
        return replace(self, job={**self.job, section: {**self.job.get(section, {}), **keys}})


class Changed(NamedTuple):
    """Two cases that must learn the same parameters after the change is undone.

    Attributes
    ----------
    before, after : the cases
    undo : function that converts the parameters that ``after`` learned to those of ``before``
    far : distance of the changed data from zero, relative to their size
    exact : whether the bits must be equal
    """

    before: Case
    after: Case
    undo: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict
    far: float = 1.0
    exact: bool = False


def schemes_of(model: dict[str, Any]) -> list[str]:
    """Return the schemes that suit a model. A job with any other scheme is refused."""
    return [scheme for scheme in SCHEMES.names() if suits(job_of(model, scheme, 0))]


def suits(job: dict[str, Any]) -> bool:
    """Return whether the scheme of a job suits its model."""
    try:
        check_job(job)
    except UserError as refusal:
        if "inference.scheme" not in str(refusal):
            raise
        return False
    return True


def job_of(model: dict[str, Any], scheme: str, seed: int) -> dict[str, Any]:
    """Return a short job of a model and a scheme. The seed determines the choice of keys."""
    kind = every_model.class_of(model)
    absent = kind.Options.absent(model)
    learn = [name for name in kind.learns or kind.params if name not in absent]
    each = [name for name in learn if kind.params[name].each and seed % 2]
    return {
        "model": {"causes": H, **model, "learn": learn, "each": each},
        "data": {"source": "array:given"},
        "inference": {"scheme": scheme, **SCHEMES_TRIED[scheme][seed % len(SCHEMES_TRIED[scheme])]},
        "anneal": {"iterations": ITERATIONS, "temperature": 1.0},
        "run": {"seed": 1 + seed, "block": 16},
    }


def case_of(model: dict[str, Any], scheme: str, seed: int) -> Case:
    """Return data that the model draws with random parameters, and other initial parameters."""
    job, rng = job_of(model, scheme, seed), np.random.default_rng([seed, 1])
    whole = Case(job, np.empty((0, D)), {}).model
    Y = whole.draw(every_model.begin(whole, N, rng), rng, N)[0]
    return Case(job, Y, every_model.begin(whole, N, rng))


def rounded(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move each number of a stored parameter by roundings. Covariances stay symmetric."""
    step = PARAMETER_ROUNDINGS * EPS * rng.standard_normal(values.shape)
    if values.ndim == 3:
        step = 0.5 * (step + step.transpose(0, 2, 1))
    return np.asarray(values * (1 + step), order="F")


def disturbed(case: Case, by: float, rng: np.random.Generator) -> Case:
    """Move all inputs by the fraction ``by`` of the size of their array. Counts of zero stay zero."""

    def moved(values: np.ndarray, relative: bool) -> np.ndarray:
        step = by * rng.standard_normal(values.shape)
        if values.ndim == 3:  # covariances
            step = 0.5 * (step + step.transpose(0, 2, 1))
        return values * (1 + step) if relative else values + step * np.sqrt((values**2).mean())

    kind, params = getattr(case.model, "noise", None), case.model.params
    Y = case.Y if isinstance(kind, Binary) else moved(case.Y, isinstance(kind, Poisson))
    start = {name: moved(value, not params[name].axes) for name, value in case.start.items()}
    return replace(case, Y=Y, start=start)


def worst(changed: Changed, seed: int, known: dict[Any, Any]) -> tuple[float, str]:
    """Return the largest difference relative to the tolerance, and its parameter.

    ``known`` caches the fits of the unchanged case for further relations.
    """
    key, rng = (repr(changed.before.job), changed.before.Y.tobytes()), np.random.default_rng([seed, 2])
    if key not in known:
        known[key] = changed.before.learned(), disturbed(changed.before, STEP, rng).learned()
    before, other = known[key]
    raw = changed.after.learned()
    after = changed.undo(raw)
    gaps = {name: float(np.abs(after[name] - before[name]).max()) for name in before if name in after}
    roundings = EPS * (ROUNDINGS + MEAN_ROUNDINGS * (changed.far - 1))
    if changed.exact:
        return max((np.inf if gap != 0 else 0.0, name) for name, gap in gaps.items() if name != "free_energy")
    allowed = {}
    for name in gaps:
        size = max(np.abs(before[name]).max(), np.abs(raw[name]).max() if name == "free_energy" else 0.0)
        conditioning = np.abs(other[name] - before[name]).max() / STEP
        allowed[name] = roundings * (conditioning + size)
    if any(allowed[name] < gap <= MAX_DIFFERENCE for name, gap in gaps.items()):
        for stored in [None] * JUMPS + [rng] * JUMPS:
            jumped = disturbed(changed.before, roundings, rng).learned(stored)
            for name in gaps:
                allowed[name] = max(allowed[name], 2 * float(np.abs(jumped[name] - before[name]).max()))
    return max((gap / allowed[name] if gap <= MAX_DIFFERENCE else np.inf, name) for name, gap in gaps.items())
