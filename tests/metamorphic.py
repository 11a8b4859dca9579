"""Relations between two fits: data and start are changed alike, and what is learned changes as it must.

A ``Relation`` changes a ``Case`` and undoes the change on what was learned. No expected values are needed, so all
models and schemes are tested on data of any size.

How near the two must be is derived, not fitted. A stable computation returns the exact result for inputs that are off
by some roundings. So the result may be off by as much as it moves when each input moves by that: this is its
conditioning, measured by a fit of inputs that are moved by ``STEP``. Each number is rounded once for each of the
points, dimensions and causes that it is summed over, in each iteration: ``ROUNDINGS`` of these. Where data are far from
zero, with a distance of m times their size, points and means are stored with errors m times larger. What is summed are
their differences, so this happens ``STORED`` times.

Between iterations parameters are stored, rounded. A covariance of few points is almost singular, and stays so if its
points and its start are moved. Its last digits then count for more than the conditioning of the inputs shows. Where a
relation seems to be broken, fits are looked at in which stored parameters are moved by ``KEPT`` roundings.

Where a decision (a candidate, a kept state, an order of fields) hangs on the last digits, inputs moved by roundings
jump to another result. Such jumps are allowed as well; they are looked for where a relation seems to be broken.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import every
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
"""Roundings of a number, times 4: the direction in which conditioning is measured is not the worst one."""
STORED = 4 * 2 * ITERATIONS
"""Roundings of a number that is far from zero: of a mean, and of what is subtracted from points, in each iteration."""
KEPT = 4 * 8
"""Roundings of a stored parameter, times 4 as above: of a product, of its sum in a block and over blocks, of the two
differences by which the mean moves, of the quotient by the weight, of ``reg`` that is added, and of storage."""
STEP = 1e-9
"""Relative movement of the inputs by which conditioning is measured."""

JUMPS = 8
"""Fits of inputs moved by roundings, by which jumps are looked for; and as many that move stored parameters too."""
LARGEST = 1e300
"""A difference above which something was no number."""

SCHEMES_TRIED: dict[str, list[dict[str, Any]]] = {
    "exact": [{}],
    "et": [{"candidates": 3, "gamma": 2}, {"candidates": 3, "gamma": 2, "singletons": True}],
    # all states over the candidates are proposed, so nothing is drawn
    "tv": [{"states": 5, "gamma": 3, "candidates": 3, "propose": {"select": 64}}],
    "hard": [{"gamma": 3, "candidates": 3, "propose": {"select": 64}}],
    "sample": [{"samples": 24, "chains": 2}, {"samples": 24, "chains": 2, "candidates": 3, "random": 1}],
}
"""Keys of [inference], of which a seed takes one."""
DRAWN = {"sample"}
"""Schemes that draw, by the index of a point and the place of a cause among its candidates."""


@dataclass(frozen=True)
class Case:
    """A job, data (N, D) and parameters to begin with."""

    job: dict[str, Any]
    Y: np.ndarray
    start: dict[str, np.ndarray]

    @cached_property
    def model(self) -> Any:
        """The model of the job, without parameters."""
        checked = check_job(self.job)
        return checked.Model(checked.model, self.Y.shape[1])

    def learned(self, rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
        """What the iterations learn: parameters, and the free energy of each iteration.

        With ``rng`` the parameters that an iteration stores are moved by roundings.
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
        """The same with other keys in a section of the job."""
        return replace(self, job={**self.job, section: {**self.job.get(section, {}), **keys}})


class Changed(NamedTuple):
    """Two cases that must learn the same, once the change is undone.

    Attributes
    ----------
    before, after : the cases
    undo : what ``after`` learned, as ``before`` must have learned it
    far : distance of the changed data from zero, relative to their size
    exact : whether the bits are to be equal
    """

    before: Case
    after: Case
    undo: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict
    far: float = 1.0
    exact: bool = False


def schemes_of(model: dict[str, Any]) -> list[str]:
    """The schemes by which a model can be learned; a job with any other is refused."""
    return [scheme for scheme in SCHEMES.names() if suits(job_of(model, scheme, 0))]


def suits(job: dict[str, Any]) -> bool:
    """Whether the scheme of a job suits its model."""
    try:
        check_job(job)
    except UserError as refusal:
        if "inference.scheme" not in str(refusal):
            raise
        return False
    return True


def job_of(model: dict[str, Any], scheme: str, seed: int) -> dict[str, Any]:
    """A short job of a model and a scheme; the seed chooses among keys."""
    kind = every.class_of(model)
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
    """Data that the model draws of some parameters, and other parameters to begin with."""
    job, rng = job_of(model, scheme, seed), np.random.default_rng([seed, 1])
    whole = Case(job, np.empty((0, D)), {}).model
    Y = whole.draw(every.begin(whole, N, rng), rng, N)[0]
    return Case(job, Y, every.begin(whole, N, rng))


def rounded(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A stored parameter, each number of which is moved by roundings; covariances stay symmetric."""
    step = KEPT * EPS * rng.standard_normal(values.shape)
    if values.ndim == 3:
        step = 0.5 * (step + step.transpose(0, 2, 1))
    return np.asarray(values * (1 + step), order="F")


def disturbed(case: Case, by: float, rng: np.random.Generator) -> Case:
    """The case with all inputs moved ``by`` this share of the size of their array; counts keep their zeros."""

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
    """The largest difference beside what is allowed, and the parameter that has it.

    ``known`` keeps what the unchanged case learns from one relation to the next.
    """
    key, rng = (repr(changed.before.job), changed.before.Y.tobytes()), np.random.default_rng([seed, 2])
    if key not in known:
        known[key] = changed.before.learned(), disturbed(changed.before, STEP, rng).learned()
    before, other = known[key]
    raw = changed.after.learned()
    after = changed.undo(raw)
    gaps = {name: float(np.abs(after[name] - before[name]).max()) for name in before if name in after}
    roundings = EPS * (ROUNDINGS + STORED * (changed.far - 1))
    if changed.exact:
        return max((np.inf if gap != 0 else 0.0, name) for name, gap in gaps.items() if name != "free_energy")
    allowed = {}
    for name in gaps:
        size = max(np.abs(before[name]).max(), np.abs(raw[name]).max() if name == "free_energy" else 0.0)
        conditioning = np.abs(other[name] - before[name]).max() / STEP
        allowed[name] = roundings * (conditioning + size)
    if any(allowed[name] < gap <= LARGEST for name, gap in gaps.items()):
        for stored in [None] * JUMPS + [rng] * JUMPS:
            jumped = disturbed(changed.before, roundings, rng).learned(stored)
            for name in gaps:
                allowed[name] = max(allowed[name], 2 * float(np.abs(jumped[name] - before[name]).max()))
    return max((gap / allowed[name] if gap <= LARGEST else np.inf, name) for name, gap in gaps.items())
