"""The keys of [anneal]: schedules, the cut, noise, and convergence."""

from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, create_model, model_validator
from pydantic_core import PydanticCustomError

from parallel_et.core.model import Model
from parallel_et.core.schema import CHOICE, MAX_COUNT, MAX_MAGNITUDE, Section, is_number
from parallel_et.core.types import OwnSchedule

SCHEDULE = "a number, or pairs [position, value] with rising positions, such as [[0.1, 13.0], [0.8, 1.0]]"


def _check_schedule(value: Any) -> Any:
    if is_number(value):
        return float(value)
    if (
        isinstance(value, list)
        and value
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair)) for pair in value)
        and all(a[0] < b[0] for a, b in pairwise(value))
        and value[0][0] >= 0
    ):
        return [[float(position), float(level)] for position, level in value]
    raise PydanticCustomError("expected", SCHEDULE)


def _within(low: float, high: float, expected: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        checked = _check_schedule(value)
        levels = [level for _, level in checked] if isinstance(checked, list) else [checked]
        if not all(low <= level <= high for level in levels):
            raise PydanticCustomError("expected", expected)
        return checked

    return BeforeValidator(check)


COLDEST, HOTTEST = 1e-3, 1e9
TEMPERATURES = f"a schedule with temperatures from {COLDEST:g} to {HOTTEST:g}"
FALLING = "an end that is not above the start"
FRACTIONS = "a schedule with values from 0 (no cut) to 1 (the full cut)"
DEVIATIONS = f"a schedule with standard deviations from 0 to {MAX_MAGNITUDE:g}"
TemperatureSchedule = Annotated[Any, _within(COLDEST, HOTTEST, TEMPERATURES), TEMPERATURES]
Fraction = Annotated[Any, _within(0.0, 1.0, FRACTIONS), FRACTIONS]
Deviation = Annotated[Any, _within(0.0, MAX_MAGNITUDE, DEVIATIONS), DEVIATIONS]


class Cooling(Section):
    """Adaptive cooling: the temperature falls by one step after each iteration with small changes of all fields."""

    start: float = Field(ge=COLDEST, le=HOTTEST, description="initial temperature")
    end: float = Field(1.0, ge=COLDEST, le=HOTTEST, description="final temperature")
    steps: int = Field(50, ge=1, le=MAX_COUNT, description="number of equal steps from start to end")
    hold: int = Field(10, ge=0, le=MAX_COUNT, description="iterations before the first step")
    change: float = Field(
        2.5e-3,
        gt=0,
        le=MAX_MAGNITUDE,
        description="largest change of a field that counts as small, |W_h - W_h,old| / sum_d |W_dh,old|",
    )

    @model_validator(mode="after")
    def _falls(self) -> "Cooling":
        if self.end > self.start:
            raise PydanticCustomError("expected", FALLING)
        return self


class Variance(Section):
    """A temperature that follows sigma: the E-step uses this noise variance while sigma^2 is smaller."""

    variance: TemperatureSchedule = Field(description="schedule v of the noise variance: T = max(1, v / sigma^2)")


def _kind(value: Any) -> str:
    by_variance = isinstance(value, Variance) or (isinstance(value, dict) and "variance" in value)
    return "Variance" if by_variance else "Cooling" if isinstance(value, dict | Cooling) else "schedule"


Temperature = Annotated[
    Annotated[Any, _within(COLDEST, HOTTEST, TEMPERATURES), Tag(f"{CHOICE}schedule")]
    | Annotated[Cooling, Tag(f"{CHOICE}Cooling")]
    | Annotated[Variance, Tag(f"{CHOICE}Variance")],
    Discriminator(lambda value: CHOICE + _kind(value)),
    TEMPERATURES,
]


class Cut(Section):
    """Data classification: the M-step uses the round(N - f (N - share N^{<=gamma})) points of largest evidence."""

    schedule: Fraction = Field(0.0, description="progress f of the cut, from 0 (no cut) to 1 (full cut)")
    share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="fraction of N^{<=gamma} (the expected number of points with at most gamma causes) that remains at "
        "f = 1",
    )


class Stop(Section):
    """Early stopping once W has converged and all schedules have reached their last values; off by default."""

    change: float = Field(
        gt=0,
        le=MAX_MAGNITUDE,
        description="largest relative change of W (noise included) in one iteration, |W - W_old| / |W_old|",
    )
    iterations: int = Field(
        5, ge=1, le=MAX_COUNT, description="number of consecutive iterations with at most this change"
    )
    fields: bool = Field(False, description="use the largest change of any field instead, as in adaptive cooling")
    holdout: bool = Field(
        False,
        description="use the rise of the held-out evidence per point instead, relative to its value at the last larger "
        "rise; requires data.holdout",
    )

    @model_validator(mode="after")
    def _one(self) -> "Stop":
        if self.fields and self.holdout:
            raise PydanticCustomError("expected", "fields or holdout")
        return self


class Step(Section):
    """Weight of the statistics of minibatch t = 0, 1, … in their running average: (1 + t / delay)^-power."""

    power: float = Field(0.6, ge=0, le=1, description="speed of the decay; 0: earlier minibatches have no weight")
    delay: float = Field(1.0, ge=1e-3, le=MAX_MAGNITUDE, description="number of M-steps until the weight is 2^-power")


class AnnealNoise(Section):
    """Schedules of the standard deviation of Gaussian noise, which is added to parameters after each M-step."""


class Anneal(Section):
    """The keys of [anneal]. A model adds its own schedules, and ``noise`` for its parameters."""

    iterations: int = Field(100, ge=1, le=MAX_COUNT, description="number of EM iterations")
    temperature: Temperature = Field(1.0, description="temperature T of the E-step: q ~ p(s, y)^(1/T)")
    cut: Cut = Cut()
    stop: Stop | None = None
    hold: int = Field(
        0,
        ge=0,
        le=MAX_COUNT,
        description="warm-up: number of iterations at the start in which W is not learned",
    )
    renew: int = Field(
        0,
        ge=0,
        le=1000,
        description="number of attempts to restart unused fields along unexplained directions of the data, between "
        "50 % and 80 % of the run",
    )
    batch: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="minibatch size: maximum number of points per iteration, in whole blocks; a cut selects among "
        "these; default: all points",
    )
    step: Step = Step()


def keys_for(model: type[Model]) -> type[Anneal]:
    """Return the keys of [anneal] for a model."""
    deviations: Any = {
        name: (Deviation, Field(0.0, description=f"standard deviation of the noise on {name}")) for name in model.params
    }
    noise = create_model("Noise", __base__=AnnealNoise, **deviations)
    own: Any = {name: _own_schedule(own) for name, own in model.schedules.items()}
    return create_model("Anneal", __base__=Anneal, noise=(noise, noise()), **own)


def _own_schedule(own: OwnSchedule) -> Any:
    """Return type and field of a schedule that a model declares."""
    words = f"a schedule with values of {own.low:g} or more"
    return Annotated[Any, _within(own.low, MAX_MAGNITUDE, words), words], Field(None, description=own.description)
