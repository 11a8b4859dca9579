"""Occlusive components analysis (OCA): causes with masks and features, of which the nearest hides those behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.special import gammaln

from parallel_et.core.latent_states import Latents, Table, best
from parallel_et.core.model import UNUSED, EnumeratingView, Evaluator, Model
from parallel_et.core.options import ModelOptions
from parallel_et.core.posterior import Listed, Posterior, Sparse, Tabled
from parallel_et.core.types import OwnSchedule, Param, Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.errors import UserError
from parallel_et.kernels import occlusion
from parallel_et.kernels.rows import aligned, pad_rows, padded
from parallel_et.models.components.fields import all_products, block_norms, with_none
from parallel_et.models.components.noises import SIGMA, Gauss
from parallel_et.models.components.priors import PI, Ordered
from parallel_et.models.components.rounding import SHARP, far
from parallel_et.models.components.weighted_states import weighted

SHARPEST = 21.0
"""Sharpness of the occlusion in the M-step from T = 1.05 on (OCA sec. 4.1)."""
HARD = 50.0
"""From this sharpness on only the cause that is shown has a share in a pixel."""


class OCAOptions(ModelOptions):
    """The keys of [model] of its own."""

    channels: int = Field(3, ge=1, le=1000, description="values of a pixel, side by side in a point: 3 for colours")


class OCAEvaluator(Evaluator):
    """OCA with its parameters bound.

    Attributes
    ----------
    masks, heights : (H, wide) W and |W| of all pixels
    features : (H, C)
    pictures : (H, width) each cause alone, as a point
    powers, kappa : (H, wide), (gamma + 1, gamma) factors of the shares of the M-step; see the kernel
    hard : whether only the cause that is shown has a share in a pixel
    orders : (H + 1,) T log m!, as 1 / m! is the prior of orders at any temperature
    bias : (H,) part of the log joint of each single cause that does not depend on the point
    odds : (H,) or (1,) log odds that a cause is active
    empty : log joint of no active cause and a point of zeros
    precision : 1 / sigma^2
    """

    model: "OCA"

    def __init__(self, model: "OCA", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        W, rho = params["W"].T, settings.model["rho"]
        variance, odds = float(params["sigma"]) ** 2, model.prior.odds(params)
        self.pictures = pad_rows(model.pictures(params).T)
        self.masks = model.pad_pixels(W)
        self.heights = np.abs(self.masks)
        self.features = np.ascontiguousarray(params["T"].T)
        self.hard = settings.undisturbed or rho >= HARD
        self.powers = self.heights if self.hard else model.pad_pixels(powers_of(np.abs(W), rho), 1.0)
        most = max(1, settings.most)
        size, place = np.arange(most + 1)[:, None], np.arange(most)
        self.kappa = (1 + np.minimum(place / np.maximum(1, size - 1), 1.0)) ** min(rho, HARD)
        self.orders = settings.temperature * gammaln(np.arange(model.H + 1) + 1.0)
        self.bias = odds - 0.5 / variance * block_norms(self.pictures)
        self.odds = np.atleast_1d(odds)
        self.empty = model.prior.empty(params) - 0.5 * model.D * np.log(2 * np.pi * variance)
        self.precision = 1 / variance

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y), (...), with the prior of orders to the power T: annealing does not change this prior."""
        odds = with_none(np.broadcast_to(self.odds, self.model.H))[states].sum(-1) - self.orders[(states >= 0).sum(-1)]
        return self.empty + odds - 0.5 * self.precision * ((Y - self.model.mean(self.params, states)) ** 2).sum(-1)


class OCAView(EnumeratingView):
    """A block of points under OCA: log joints pixel by pixel, or by residuals where the kernels lose digits."""

    model: "OCA"
    evaluator: OCAEvaluator

    @cached_property
    def base(self) -> np.ndarray:
        """Log joint of the empty state, (n,)."""
        return self.evaluator.empty - 0.5 * self.evaluator.precision * block_norms(self.block.rows)

    @cached_property
    def product(self) -> np.ndarray:
        """Products of the points with all pictures, (n, H)."""
        return all_products(self.block.rows, self.evaluator.pictures)

    def select(self, count: int) -> np.ndarray:
        return best(self.product - 0.5 * block_norms(self.evaluator.pictures), count)

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Posterior:
        if len(far(self.base)):
            return super().over_table(candidates, table, beta)
        by, n = self.evaluator, len(candidates)
        evidence, weights = np.empty(n), np.empty((n, len(table)))
        alone = self.product.copy() if self.singles else np.empty((n, 0))
        occlusion.posterior(
            self.block.rows,
            self.model.pixels,
            by.masks,
            by.heights,
            by.features,
            self.base,
            by.bias,
            by.odds,
            by.orders,
            by.precision,
            beta,
            candidates,
            table.members,
            table.size,
            alone,
            evidence,
            weights,
        )
        return Tabled(evidence, candidates, table, Sparse.of(weights), Sparse.of(alone))

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        if len(far(self.base)):
            return super().log_joint(states)
        by, logs = self.evaluator, np.empty(states.shape[:2])
        occlusion.log_states(
            self.block.rows,
            self.model.pixels,
            by.masks,
            by.heights,
            by.features,
            self.base,
            by.odds,
            by.orders,
            by.precision,
            states,
            logs,
        )
        return logs

    def log_singles(self) -> np.ndarray:
        if len(far(self.base)):
            return super().log_singles()
        return self.product * self.evaluator.precision + self.evaluator.bias + self.base[:, None]

    def accumulate(self, stage: str, posterior: Tabled | Listed, used: np.ndarray, total: Sums) -> None:
        names, inner = ("numerator", "denominator", "alone", "active"), np.empty(len(self))
        declared = self.model.statistics(stage)
        found = [np.zeros(declared[name].shape) for name in names]
        by, states, T = self.evaluator, weighted(posterior, self.model.H), self.evaluator.settings.temperature
        occlusion.weighted_sums(
            self.block.rows,
            self.model.pixels,
            by.powers,
            by.kappa,
            by.hard,
            *states,
            used,
            by.odds,
            by.orders,
            T,
            *found,
            inner,
        )
        for name, values in zip(names, found, strict=True):
            total.add(name, values)
        if stage == "all":  # as F_n = <log p^beta> - <log q>
            gap = by.empty - T * posterior.evidence - inner
            errors = 2 / by.precision * gap
            coarse = used & ~(gap > SHARP * (np.abs(by.empty) + np.abs(inner)))
            if coarse.any():  # the difference has lost its digits
                errors[coarse] = self.squared_residuals(posterior, coarse)[coarse]
            total.add("error", errors[used].sum())

    def squared_residuals(self, posterior: Tabled | Listed, some: np.ndarray) -> np.ndarray:
        """Return <|y - mean(s)|^2> of ``some`` points (n,) bool, 0 for others, (n,); at D operations a state."""
        errors = np.zeros(len(self))
        point, states, q = posterior.pairs(some)
        for piece in self.pieces(len(q), 1):
            gap = self.block.Y[point[piece]] - self.model.mean(self.evaluator.params, states[piece])
            errors += np.bincount(point[piece], q[piece] * (gap * gap).sum(1), len(errors))
        return errors


class OCA(Model):
    """A pixel shows W_dh T_h of the active cause h whose proximity times |W_dh| is largest (OCA eq. 3).

    A state lists its causes from the farthest to the nearest. The joint has the true occlusion, the M-step a soft one
    (eq. 9), whose sharpness follows the temperature. Masks may be negative: what counts for the occlusion is their
    magnitude.
    """

    Options = OCAOptions
    View: ClassVar[type[OCAView]] = OCAView
    first_job = {"data": {"overlap": "nearest", "colours": "hues"}}
    prior: Ordered
    noise: Gauss
    params = {
        "W": Param("PH", "masks, one for each cause"),
        "T": Param("CH", "features, one for each cause"),
        "sigma": SIGMA,
        "pi": PI,
    }
    stages = ("all", "shown")
    schedules = {
        "rho": OwnSchedule(
            lambda temperature: min(SHARPEST, temperature / (temperature - 1)) if temperature > 1 else SHARPEST,
            least=1.0,
            does=f"sharpness of the occlusion in the M-step; by default T / (T - 1), but {SHARPEST:g} at most; from "
            f"{HARD:g} on it is a hard one",
        ),
        "alpha": OwnSchedule(
            lambda temperature: 0.5,
            least=0.0,
            does="masks are scaled such that the mean of their values above this is 1; by default 0.5",
        ),
    }

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.channels = options.channels
        self.pixels = max(1, dims // self.channels)
        self.wide = padded(self.pixels)
        self.sizes = {**self.sizes, "P": self.pixels, "C": self.channels}
        self.latents = Latents(self.H, ordered=True)
        self.prior, self.noise = Ordered(self.H), Gauss()

    def evaluator(self, params: Params, settings: Settings) -> OCAEvaluator:
        return OCAEvaluator(self, params, settings)

    def pad_pixels(self, table: np.ndarray, rest: float = 0.0) -> np.ndarray:
        """Return a table of all pixels (H, P) as the kernels take it, (H, wide), with ``rest`` beyond the pixels."""
        found = aligned((self.H, self.wide))
        found[:, : self.pixels], found[:, self.pixels :] = table, rest
        return found

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        return {"channels": len(arrays["T"])} if "T" in arrays else {}

    def check(self, summary: Summary) -> None:
        if summary.dims % self.channels:
            found = f"{self.channels} with {summary.dims} values"
            raise UserError(f"model.channels: expected a divisor of the number of values of a point, found {found}")

    def has_stage(self, stage: str, settings: Settings) -> bool:
        return stage == "all" or (settings.undisturbed and "W" in self.options.learn)

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        return (0.5, 0.3) if name == "W" else (summary.rms or 1.0, summary.rms / 2 or 0.5)

    def constrain(self, params: Params) -> Params:
        """Sigma and pi that noise has made negative are reflected at zero."""
        reflected = {name: np.abs(value) for name, value in params.items() if name in ("sigma", "pi")}
        return super().constrain({**params, **reflected})

    def nanoseconds(self, states: int) -> float:
        return 0.2 * self.pixels * (self.channels * self.H + 2 * states)

    def pictures(self, params: Params) -> np.ndarray:
        return (params["W"][:, None] * params["T"]).reshape(self.D, -1)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        count = (states >= 0).sum(-1, keepdims=True)
        near = np.where(count > 1, 1 + np.arange(states.shape[-1]) / np.maximum(1, count - 1), 1.5)
        heights = with_none(np.abs(params["W"].T))[states] * near[..., None]
        shown = states.shape[-1] - 1 - heights[..., ::-1, :].argmax(-2)
        cause = np.take_along_axis(states, shown, -1)
        masks = with_none(params["W"].T)[cause, np.arange(self.pixels)]
        picture = masks[..., None] * with_none(params["T"].T)[cause]
        return picture.reshape(*states.shape[:-1], self.D)

    # the M-step

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        found = {
            "numerator": Statistic((self.H, self.channels, self.wide), lambda params, summary: summary.largest),
            "denominator": Statistic((self.H, self.wide)),
            "alone": Statistic((self.H,)),
            "active": Statistic((self.H,)),
        }
        return found if stage == "shown" else {**found, "error": Statistic((), self._most_error)}

    def _most_error(self, params: Params, summary: Summary) -> float:
        brightest = float(np.abs(params["W"]).max() * np.abs(params["T"]).max())
        return self.D * (summary.largest + brightest) ** 2

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        learn, points, shown = self.options.learn, float(sums["points"]), Shown.of(sums, self.pixels)
        new = dict(params)
        if "W" in learn:
            new["W"] = shown.best_masks(params, UNUSED * points)
        if "pi" in learn:
            new["pi"] = self.prior.learn(params, sums["active"], points, settings)
        if self.has_stage("shown", settings):
            return new
        error = float(sums["error"])
        if "T" in learn:
            new["T"] = shown.best_features(new, UNUSED * points)
        if settings.undisturbed:  # with the masks as they were the features are the best
            error += shown.error(new) - shown.error(params)
        elif {"W", "T"} <= set(learn):
            new["W"], new["T"] = rescaled(new["W"], new["T"], settings.model["alpha"])
        return {**new, "sigma": self.noise.learn(params, error, points, summary)}

    def revise(
        self,
        stage: str,
        params: Params,
        sums: Totals,
        settings: Settings,
        summary: Summary,
        before: Params,
        earlier: Totals,
    ) -> Params:
        """Keep the new masks in those pixels alone where they are better, as other causes may be shown now.

        Given the masks it is known what is shown, and the features are the best; so the free energy does not fall.
        """
        points = float(sums["points"])
        new, old = Shown.of(sums, self.pixels), Shown.of(earlier, self.pixels)
        better = new.errors(params) < old.errors(before)
        shown = Shown(
            np.where(better, new.numerator, old.numerator), np.where(better, new.denominator, old.denominator)
        )
        found = {**params, "W": np.where(better[:, None], params["W"], before["W"])}
        if "T" in self.options.learn:
            found["T"] = shown.best_features(found, UNUSED * points)
        error = float(earlier["error"]) + shown.error(found) - old.error(before)
        return {**found, "sigma": self.noise.learn(params, error, points, summary)}


@dataclass(frozen=True)
class Shown:
    """How much of each cause is shown in each pixel, <A> (H, P), and of what there is in the data, <A> y (H, C, P)."""

    numerator: np.ndarray
    denominator: np.ndarray

    @classmethod
    def of(cls, sums: Totals, pixels: int) -> "Shown":
        """What the sums of a stage say."""
        weight = sums["denominator"] + sums["alone"][:, None]
        return cls(sums["numerator"][:, :, :pixels], weight[:, :pixels])

    def best_masks(self, params: Params, least: float) -> np.ndarray:
        """OCA eq. 21 for W, (P, H); as it was where a cause is shown with less than the ``least`` weight."""
        T = params["T"]
        weight = self.denominator * np.einsum("ch,ch->h", T, T)[:, None]
        known = (self.denominator > least) & (weight > 0)
        along = np.einsum("hcd,ch->hd", self.numerator, T)
        return np.where(known, along / np.where(known, weight, 1.0), params["W"].T).T

    def best_features(self, params: Params, least: float) -> np.ndarray:
        """OCA eq. 21 for T, (C, H), with the masks of ``params``."""
        W = params["W"]
        weight = np.einsum("hd,dh->h", self.denominator, W**2)
        known = weight > least
        along = np.einsum("hcd,dh->ch", self.numerator, W)
        return np.where(known, along / np.where(known, weight, 1.0), params["T"])

    def errors(self, params: Params) -> np.ndarray:
        """The sum of <|y_d - m_d|^2 - |y_d|^2> in each pixel, (P,), if that much of each cause is shown."""
        W, T = params["W"], params["T"]
        along = np.einsum("hcd,ch->dh", self.numerator, T)
        square = np.einsum("ch,ch->h", T, T)
        return (W * (W * square * self.denominator.T - 2 * along)).sum(1)

    def error(self, params: Params) -> float:
        """The same of all pixels."""
        return float(self.errors(params).sum())


def powers_of(heights: np.ndarray, rho: float) -> np.ndarray:
    """|W|^rho (H, P), relative to the largest of a pixel; what is tiny beside that counts as if a bit larger."""
    top = heights.max(0)
    relative = heights / np.where(top > 0, top, 1.0)
    return np.maximum(relative, 1e-280 ** (1 / rho)) ** rho


def rescaled(W: np.ndarray, T: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Masks (P, H) whose values of a magnitude above alpha have the mean 1, and features (C, H) times that mean."""
    large = np.abs(W) > alpha
    mean = (W * large).sum(0) / np.maximum(1, large.sum(0))
    mean = np.where(mean != 0, mean, 1.0)
    return W / mean, T * mean


MODEL = OCA
