"""The keys of [anneal]: schedules, the cut, noise, and when a run has settled."""

from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, create_model, model_validator
from pydantic_core import PydanticCustomError

from parallel_et.core.model import Model
from parallel_et.core.schema import CHOICE, LARGEST, MOST, Section, is_number
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


def _within(low: float, high: float, words: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        checked = _check_schedule(value)
        levels = [level for _, level in checked] if isinstance(checked, list) else [checked]
        if not all(low <= level <= high for level in levels):
            raise PydanticCustomError("expected", words)
        return checked

    return BeforeValidator(check)


COLDEST, HOTTEST = 1e-3, 1e9
WARM = f"a schedule with temperatures from {COLDEST:g} to {HOTTEST:g}"
FALL = "an end that is not above the start"
SHARE = "a schedule with values from 0 (no cut) to 1 (the full cut)"
SPREAD = f"a schedule with standard deviations from 0 to {LARGEST:g}"
Warm = Annotated[Any, _within(COLDEST, HOTTEST, WARM), WARM]
Share = Annotated[Any, _within(0.0, 1.0, SHARE), SHARE]
Spread = Annotated[Any, _within(0.0, LARGEST, SPREAD), SPREAD]


class Cooling(Section):
    """Cooling that waits: the temperature falls by a step after an iteration that has changed all fields but little."""

    start: float = Field(ge=COLDEST, le=HOTTEST, description="temperature to begin with")
    end: float = Field(1.0, ge=COLDEST, le=HOTTEST, description="last temperature")
    steps: int = Field(50, ge=1, le=MOST, description="equal steps from one to the other")
    hold: int = Field(10, ge=0, le=MOST, description="iterations before the first step")
    change: float = Field(
        2.5e-3, gt=0, le=LARGEST, description="change of a field that is little, |W_h - W_h,old| / sum_d |W_dh,old|"
    )

    @model_validator(mode="after")
    def _falls(self) -> "Cooling":
        if self.end > self.start:
            raise PydanticCustomError("expected", FALL)
        return self


class Variance(Section):
    """A temperature that follows sigma: the E-step has this variance of the noise, as long as sigma^2 is below it."""

    variance: Warm = Field(description="its schedule, v: T = v / sigma^2, or 1 where that is less")


def _kind(value: Any) -> str:
    by_variance = isinstance(value, Variance) or (isinstance(value, dict) and "variance" in value)
    return "Variance" if by_variance else "Cooling" if isinstance(value, dict | Cooling) else "schedule"


Temperature = Annotated[
    Annotated[Any, _within(COLDEST, HOTTEST, WARM), Tag(f"{CHOICE}schedule")]
    | Annotated[Cooling, Tag(f"{CHOICE}Cooling")]
    | Annotated[Variance, Tag(f"{CHOICE}Variance")],
    Discriminator(lambda value: CHOICE + _kind(value)),
    WARM,
]


class Cut(Section):
    """Data classification: the M-step has the N_cut = round(N - f (N - share N^{<=gamma})) points of most evidence."""

    schedule: Share = Field(0.0, description="how far it has gone, f")
    share: float = Field(1.0, gt=0, le=1, description="part of N^{<=gamma} that is left when f = 1")


class Stop(Section):
    """End early once W, noise included, has settled, all schedules being at their last values; by default never."""

    change: float = Field(
        gt=0, le=LARGEST, description="largest relative change of W in one iteration, |W - W_old| / |W_old|"
    )
    iterations: int = Field(5, ge=1, le=MOST, description="in so many iterations in a row")
    fields: bool = Field(False, description="take the largest change of a field instead, as cooling that waits has it")
    holdout: bool = Field(
        False,
        description="take the rise of the evidence a point of the rows of data.holdout instead, above what it was when "
        "it last rose by more, as often as it is looked at",
    )

    @model_validator(mode="after")
    def _one(self) -> "Stop":
        if self.fields and self.holdout:
            raise PydanticCustomError("expected", "fields or holdout")
        return self


class Step(Section):
    """Weight of the statistics of M-step t = 0, 1, … beside the average of those before: (1 + t / delay)^-power."""

    power: float = Field(0.6, ge=0, le=1, description="how fast it falls; 0: what was before is forgotten")
    delay: float = Field(1.0, ge=1e-3, le=LARGEST, description="M-steps in which it falls to 2^-power")


class AnnealNoise(Section):
    """Standard deviation of the Gaussian noise that is added to a parameter after each M-step."""


class Anneal(Section):
    """The keys of [anneal]; a model adds its own schedules, and ``noise`` for the parameters that may have some."""

    iterations: int = Field(100, ge=1, le=MOST, description="number of EM iterations")
    temperature: Temperature = Field(1.0, description="T of the annealed E-step: q ~ p(s, y)^(1/T)")
    cut: Cut = Cut()
    stop: Stop | None = None
    hold: int = Field(
        0,
        ge=0,
        le=MOST,
        description="iterations at the beginning in which fields stay as they are, the rest is learned",
    )
    renew: int = Field(
        0,
        ge=0,
        le=1000,
        description="attempts to begin some fields anew along what all leave unexplained, between half of the run and "
        "80 % of it",
    )
    batch: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="points an iteration at most, in whole blocks; the cut is then one of these; by default all",
    )
    step: Step = Step()


def keys_for(model: type[Model]) -> type[Anneal]:
    """The keys of [anneal] for a model."""
    spreads: Any = {name: (Spread, Field(0.0, description=f"of the noise on {name}")) for name in model.params}
    noise = create_model("Noise", __base__=AnnealNoise, **spreads)
    own: Any = {name: _own(own) for name, own in model.schedules.items()}
    return create_model("Anneal", __base__=Anneal, noise=(noise, noise()), **own)


def _own(own: OwnSchedule) -> Any:
    """A schedule of a model's own, as a field."""
    words = f"a schedule with values of {own.least:g} or more"
    return Annotated[Any, _within(own.least, LARGEST, words), words], Field(None, description=own.does)
