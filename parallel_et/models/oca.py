"""Occlusive components analysis (OCA): the nearest active cause hides the causes behind it.

    p(s, order) = prod_h pi^s_h (1 - pi)^(1 - s_h) / |s|!
    p(y | s, order) = prod_d Gauss(y_d; W_dh T_h, sigma^2 I),    h the cause shown in pixel d

A cause has a mask W_h, one value per pixel, and features T_h, such as a colour.
The cause shown in a pixel is the active one with the largest product of |W_dh| and its proximity (OCA eq. 3).
The model suits images of objects that occlude each other at fixed positions, with several channels per pixel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.special import gammaln

from parallel_et.core.latent_states import Latents, Table, best_atoms
from parallel_et.core.model import UNUSED, EnumeratingView, Evaluator, Model
from parallel_et.core.options import ModelOptions
from parallel_et.core.posterior import Listed, Posterior, Sparse, Tabled
from parallel_et.core.types import OwnSchedule, Param, Params, Settings, Statistic, Summary, Sums, Totals
from parallel_et.errors import UserError
from parallel_et.kernels import occlusion
from parallel_et.kernels.rows import aligned, pad_rows, padded
from parallel_et.models.components.fields import all_products, block_norms, with_empty_row
from parallel_et.models.components.noises import SIGMA, Gauss
from parallel_et.models.components.priors import PI, Ordered
from parallel_et.models.components.rounding import MIN_ERROR_FRACTION, imprecise_points
from parallel_et.models.components.weighted_states import weighted_states

MAX_RHO = 21.0
"""Largest default sharpness rho of the occlusion in the M-step, reached at T = 1.05 (OCA sec. 4.1)."""
HARD_RHO = 50.0
"""Sharpness rho of a hard occlusion: from this value on, only the cause shown in a pixel is responsible for it."""


class OCAOptions(ModelOptions):
    """The keys of [model] for oca."""

    channels: int = Field(
        3, ge=1, le=1000, description="number of values per pixel, adjacent in a point: 3 for colours"
    )


class OCAEvaluator(Evaluator):
    """OCA with its parameters bound.

    Attributes
    ----------
    masks, heights : (H, wide) W and |W| of all pixels
    features : (H, C)
    images : (H, width) each cause alone, as a point
    powers, kappa : (H, wide), (gamma + 1, gamma) factors of the responsibilities of the M-step; see the kernel
    hard : whether only the cause shown in a pixel is responsible for it
    orders : (H + 1,) T log m!, because the prior of an order is 1 / m! at any temperature
    bias : (H,) log joint of each single cause without the terms that depend on the point
    odds : (H,) or (1,) log odds that a cause is active
    empty : log joint of no active cause and a point of zeros
    precision : 1 / sigma^2
    """

    model: "OCA"

    def __init__(self, model: "OCA", params: Params, settings: Settings) -> None:
        super().__init__(model, params, settings)
        W, rho = params["W"].T, settings.model["rho"]
        variance, odds = float(params["sigma"]) ** 2, model.prior.odds(params)
        self.images = pad_rows(model.cause_images(params).T)
        self.masks = model.pad_pixels(W)
        self.heights = np.abs(self.masks)
        self.features = np.ascontiguousarray(params["T"].T)
        self.hard = settings.undisturbed or rho >= HARD_RHO
        self.powers = self.heights if self.hard else model.pad_pixels(relative_powers(np.abs(W), rho), 1.0)
        most = max(1, settings.max_active)
        size, place = np.arange(most + 1)[:, None], np.arange(most)
        self.kappa = (1 + np.minimum(place / np.maximum(1, size - 1), 1.0)) ** min(rho, HARD_RHO)
        self.orders = settings.temperature * gammaln(np.arange(model.H + 1) + 1.0)
        self.bias = odds - 0.5 / variance * block_norms(self.images)
        self.odds = np.atleast_1d(odds)
        self.empty = model.prior.empty(params) - 0.5 * model.D * np.log(2 * np.pi * variance)
        self.precision = 1 / variance

    def log_joint(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return log p(s, y), (...). The prior of orders is raised to T, so annealing does not change this prior."""
        odds = (
            with_empty_row(np.broadcast_to(self.odds, self.model.H))[states].sum(-1)
            - self.orders[(states >= 0).sum(-1)]
        )
        return self.empty + odds - 0.5 * self.precision * ((Y - self.model.mean(self.params, states)) ** 2).sum(-1)


class OCAView(EnumeratingView):
    """A block of points under OCA. Where kernels lose digits, log joints are computed from residuals."""

    model: "OCA"
    evaluator: OCAEvaluator

    @cached_property
    def base(self) -> np.ndarray:
        """Log joint of the empty state, (n,)."""
        return self.evaluator.empty - 0.5 * self.evaluator.precision * block_norms(self.block.rows)

    @cached_property
    def product(self) -> np.ndarray:
        """Products of the points with the images of all causes, (n, H)."""
        return all_products(self.block.rows, self.evaluator.images)

    def select(self, count: int) -> np.ndarray:
        return best_atoms(self.product - 0.5 * block_norms(self.evaluator.images), count)

    def over_table(self, candidates: np.ndarray, table: Table, beta: float) -> Posterior:
        if len(imprecise_points(self.base)):
            return super().over_table(candidates, table, beta)
        by, n = self.evaluator, len(candidates)
        evidence, weights = np.empty(n), np.empty((n, len(table)))
        singletons = self.product.copy() if self.singletons else np.empty((n, 0))
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
            singletons,
            evidence,
            weights,
        )
        return Tabled(evidence, candidates, table, Sparse.of(weights), Sparse.of(singletons))

    def log_joint(self, states: np.ndarray) -> np.ndarray:
        if len(imprecise_points(self.base)):
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

    def log_singletons(self) -> np.ndarray:
        if len(imprecise_points(self.base)):
            return super().log_singletons()
        return self.product * self.evaluator.precision + self.evaluator.bias + self.base[:, None]

    def accumulate(self, stage: str, posterior: Tabled | Listed, used: np.ndarray, total: Sums) -> None:
        names, inner = ("numerator", "denominator", "singletons", "active"), np.empty(len(self))
        declared = self.model.statistics(stage)
        found = [np.zeros(declared[name].shape) for name in names]
        by, states, T = self.evaluator, weighted_states(posterior, self.model.H), self.evaluator.settings.temperature
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
        if stage == "all":  # from F_n = <log p^beta> - <log q>
            gap = by.empty - T * posterior.evidence - inner
            errors = 2 / by.precision * gap
            coarse = used & ~(gap > MIN_ERROR_FRACTION * (np.abs(by.empty) + np.abs(inner)))
            if coarse.any():  # the difference has lost its digits
                errors[coarse] = self.squared_residuals(posterior, coarse)[coarse]
            total.add("error", errors[used].sum())

    def squared_residuals(self, posterior: Tabled | Listed, some: np.ndarray) -> np.ndarray:
        """Return <|y - mean(s)|^2> of ``some`` points (n,) bool, else 0, (n,). Costs D operations per state."""
        errors = np.zeros(len(self))
        point, states, q = posterior.pairs(some)
        for piece in self.pieces(len(q), 1):
            gap = self.block.Y[point[piece]] - self.model.mean(self.evaluator.params, states[piece])
            errors += np.bincount(point[piece], q[piece] * (gap * gap).sum(1), len(errors))
        return errors


class OCA(Model):
    """Causes with masks W and features T; the nearest active cause is shown in a pixel (OCA eq. 3).

    A state lists its causes from the farthest to the nearest.
    The joint uses the true occlusion. The M-step uses a soft one (eq. 9), whose sharpness follows the temperature.
    Masks may be negative: the occlusion depends on their magnitude.
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
            lambda temperature: min(MAX_RHO, temperature / (temperature - 1)) if temperature > 1 else MAX_RHO,
            low=1.0,
            description=f"sharpness of the occlusion in the M-step, by default T / (T - 1) but at most {MAX_RHO:g}; "
            f"the occlusion is hard for values of {HARD_RHO:g} or more",
        ),
        "alpha": OwnSchedule(
            lambda temperature: 0.5,
            low=0.0,
            description="threshold, by default 0.5; masks are scaled so that the mean of their values above it is 1",
        ),
    }

    def __init__(self, options: Any, dims: int) -> None:
        super().__init__(options, dims)
        self.channels = options.channels
        self.pixels = max(1, dims // self.channels)
        self.padded_pixels = padded(self.pixels)
        self.sizes = {**self.sizes, "P": self.pixels, "C": self.channels}
        self.latents = Latents(self.H, ordered=True)
        self.prior, self.noise = Ordered(self.H), Gauss()

    def evaluator(self, params: Params, settings: Settings) -> OCAEvaluator:
        return OCAEvaluator(self, params, settings)

    def pad_pixels(self, table: np.ndarray, rest: float = 0.0) -> np.ndarray:
        """Return a table of all pixels (H, P) padded with ``rest`` for the kernels, (H, wide)."""
        found = aligned((self.H, self.padded_pixels))
        found[:, : self.pixels], found[:, self.pixels :] = table, rest
        return found

    @classmethod
    def keys_in(cls, arrays: Params) -> dict[str, Any]:
        return {"channels": len(arrays["T"])} if "T" in arrays else {}

    def check(self, summary: Summary) -> None:
        if summary.dims % self.channels:
            found = f"{self.channels} with {summary.dims} values"
            raise UserError(f"model.channels: expected a divisor of the number of values per point, found {found}")

    def has_stage(self, stage: str, settings: Settings) -> bool:
        return stage == "all" or (settings.undisturbed and "W" in self.options.learn)

    def initial_value(self, name: str, summary: Summary) -> tuple[float, float]:
        return (0.5, 0.3) if name == "W" else (summary.rms or 1.0, summary.rms / 2 or 0.5)

    def constrain(self, params: Params) -> Params:
        """Return the parameters within their limits. Negative values of sigma and pi are reflected at zero."""
        reflected = {name: np.abs(value) for name, value in params.items() if name in ("sigma", "pi")}
        return super().constrain({**params, **reflected})

    def nanoseconds(self, states: int) -> float:
        return 0.2 * self.pixels * (self.channels * self.H + 2 * states)

    def cause_images(self, params: Params) -> np.ndarray:
        return (params["W"][:, None] * params["T"]).reshape(self.D, -1)

    def mean(self, params: Params, states: np.ndarray) -> np.ndarray:
        count = (states >= 0).sum(-1, keepdims=True)
        near = np.where(count > 1, 1 + np.arange(states.shape[-1]) / np.maximum(1, count - 1), 1.5)
        heights = with_empty_row(np.abs(params["W"].T))[states] * near[..., None]
        shown = states.shape[-1] - 1 - heights[..., ::-1, :].argmax(-2)
        cause = np.take_along_axis(states, shown, -1)
        masks = with_empty_row(params["W"].T)[cause, np.arange(self.pixels)]
        picture = masks[..., None] * with_empty_row(params["T"].T)[cause]
        return picture.reshape(*states.shape[:-1], self.D)

    # the M-step

    def statistics(self, stage: str) -> Mapping[str, Statistic]:
        found = {
            "numerator": Statistic(
                (self.H, self.channels, self.padded_pixels), lambda params, summary: summary.largest
            ),
            "denominator": Statistic((self.H, self.padded_pixels)),
            "singletons": Statistic((self.H,)),
            "active": Statistic((self.H,)),
        }
        return found if stage == "shown" else {**found, "error": Statistic((), self._most_error)}

    def _most_error(self, params: Params, summary: Summary) -> float:
        brightest = float(np.abs(params["W"]).max() * np.abs(params["T"]).max())
        return self.D * (summary.largest + brightest) ** 2

    def maximise(self, stage: str, params: Params, sums: Totals, settings: Settings, summary: Summary) -> Params:
        learn, points, shown = self.options.learn, float(sums["points"]), Visibility.from_sums(sums, self.pixels)
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
        if settings.undisturbed:  # the features are optimal for the old masks
            error += shown.error(new) - shown.error(params)
        elif {"W", "T"} <= set(learn):
            new["W"], new["T"] = rescale(new["W"], new["T"], settings.model["alpha"])
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
        """Keep the new masks only in pixels where they are better, because other causes may be shown now.

        The features are then optimal for these masks, so the free energy does not fall.
        """
        points = float(sums["points"])
        new, old = Visibility.from_sums(sums, self.pixels), Visibility.from_sums(earlier, self.pixels)
        better = new.errors(params) < old.errors(before)
        shown = Visibility(
            np.where(better, new.numerator, old.numerator), np.where(better, new.denominator, old.denominator)
        )
        found = {**params, "W": np.where(better[:, None], params["W"], before["W"])}
        if "T" in self.options.learn:
            found["T"] = shown.best_features(found, UNUSED * points)
        error = float(earlier["error"]) + shown.error(found) - old.error(before)
        return {**found, "sigma": self.noise.learn(params, error, points, summary)}


@dataclass(frozen=True)
class Visibility:
    """Expected visibility A of each cause in each pixel, summed over the points.

    Attributes
    ----------
    numerator : (H, C, P) sums of <A> y
    denominator : (H, P) sums of <A>
    """

    numerator: np.ndarray
    denominator: np.ndarray

    @classmethod
    def from_sums(cls, sums: Totals, pixels: int) -> "Visibility":
        """Return the visibility in the sums of a stage."""
        weight = sums["denominator"] + sums["singletons"][:, None]
        return cls(sums["numerator"][:, :, :pixels], weight[:, :pixels])

    def best_masks(self, params: Params, least: float) -> np.ndarray:
        """Return the masks of OCA eq. 21, (P, H), and the old masks in pixels with less weight than ``least``."""
        T = params["T"]
        weight = self.denominator * np.einsum("ch,ch->h", T, T)[:, None]
        known = (self.denominator > least) & (weight > 0)
        along = np.einsum("hcd,ch->hd", self.numerator, T)
        return np.where(known, along / np.where(known, weight, 1.0), params["W"].T).T

    def best_features(self, params: Params, least: float) -> np.ndarray:
        """Return the features of OCA eq. 21 for the masks of ``params``, (C, H)."""
        W = params["W"]
        weight = np.einsum("hd,dh->h", self.denominator, W**2)
        known = weight > least
        along = np.einsum("hcd,dh->ch", self.numerator, W)
        return np.where(known, along / np.where(known, weight, 1.0), params["T"])

    def errors(self, params: Params) -> np.ndarray:
        """Return the sums of <|y_d - m_d|^2 - |y_d|^2> of the pixels for this visibility, (P,)."""
        W, T = params["W"], params["T"]
        along = np.einsum("hcd,ch->dh", self.numerator, T)
        square = np.einsum("ch,ch->h", T, T)
        return (W * (W * square * self.denominator.T - 2 * along)).sum(1)

    def error(self, params: Params) -> float:
        """Return the sum of ``errors`` over all pixels."""
        return float(self.errors(params).sum())


def relative_powers(heights: np.ndarray, rho: float) -> np.ndarray:
    """Return |W|^rho (H, P) relative to the largest value of a pixel, but at least 1e-280."""
    top = heights.max(0)
    relative = heights / np.where(top > 0, top, 1.0)
    return np.maximum(relative, 1e-280 ** (1 / rho)) ** rho


def rescale(W: np.ndarray, T: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Scale masks (P, H) so that values of a magnitude above alpha have the mean 1, and features (C, H) inversely."""
    large = np.abs(W) > alpha
    mean = (W * large).sum(0) / np.maximum(1, large.sum(0))
    mean = np.where(mean != 0, mean, 1.0)
    return W / mean, T * mean


MODEL = OCA
