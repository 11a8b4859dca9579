"""The relations. Each returns two cases that must learn the same, or the reason why it does not apply."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from metamorphic import DRAWN, Case, Changed

from parallel_et.models import Binary, Gauss, Poisson

Learned = dict[str, np.ndarray]
Change = Callable[[Case, np.random.Generator], Changed | str]

UNITS = {"W": 1, "sigma": 1, "var": 2, "pi": 0, "alpha": 0}
"""Power of the unit of the data in the unit of each parameter."""
OWN_UNITS: dict[str, dict[str, int]] = {
    "gsc": {"mu": 0, "psi": 0},
    "ssmca": {"W": 0, "mu": 1, "psi": 2},
    "oca": {"W": 0, "T": 1},
    "inveca": {"W": 0, "T": 1},
}
"""Powers for models whose parameters have other units."""
NOT_ROUND: dict[str, str] = {}
"""Models with Gaussian noise and fields of any sign whose form changes in rotated data, and the reason."""
WEIGHED = {
    "oca": "sigma follows from the evidence, which contains log(sigma)",
    "ssmca": "strengths are drawn by weights of pieces, which contain log(psi)",
}
"""Models whose M-step uses more of the posterior than weights of 0 and 1, and the reason."""
TIES = {"nmf", "mca", "mca3", "rmca"}
"""Models with ties in the preselection. The first of the tied causes are selected."""
GRID = 2.0**-20
"""Resolution of data that stay exact after a shift by 2^30."""


def axes_of(case: Case, name: str) -> str:
    """Return a letter for each axis of a parameter."""
    return case.model.params[name].axes + "H" * (name in case.model.options.each)


def taken(case: Case, params: Mapping[str, np.ndarray], order: Mapping[str, np.ndarray]) -> Learned:
    """Reorder the axes of some letters in all parameters."""
    found = dict(params)
    for name in case.model.params:
        for axis, letter in enumerate(axes_of(case, name)):
            if letter in order:
                found[name] = np.take(found[name], order[letter], axis)
    return found


def inverse(order: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inverse orders."""
    return {letter: np.argsort(one) for letter, one in order.items()}


def with_rows(case: Case, Y: np.ndarray) -> Case:
    """Return the case with other data."""
    return replace(case, Y=np.ascontiguousarray(Y))


def drawn(case: Case) -> bool:
    """Return whether the scheme has random draws."""
    return case.job["inference"]["scheme"] in DRAWN


def of(case: Case, kind: type) -> bool:
    """Return whether the noise of the model is of a kind. Clusters of any covariance count as Gaussian."""
    noise = getattr(case.model, "noise", None)
    return isinstance(noise, kind) or (kind is Gauss and noise is None and "var" in case.model.params)


def name_of(case: Case) -> str:
    """Return the name of the model."""
    return case.job["model"].get("name", "")


def permuted_rows(case: Case, rng: np.random.Generator) -> Changed | str:
    """Permute the points."""
    if drawn(case):
        return "random numbers follow from the index of a point"
    return Changed(case, with_rows(case, case.Y[rng.permutation(len(case.Y))]))


def permuted_dims(case: Case, rng: np.random.Generator) -> Changed:
    """Permute the dimensions; the pixels and the channels of images."""
    D, channels = case.Y.shape[1], getattr(case.model, "channels", 1)
    pixels, colours = rng.permutation(D // channels), rng.permutation(channels)
    dims = (pixels[:, None] * channels + colours).ravel()
    order = {"D": dims, "C": colours}
    if case.model.grid:  # objects of one pixel at any place
        order["F"] = colours
    else:
        order["P"] = pixels
    after = replace(with_rows(case, case.Y[:, dims]), start=taken(case, case.start, order))
    return Changed(case, after, lambda found: taken(case, found, inverse(order)))


def permuted_causes(case: Case, rng: np.random.Generator) -> Changed | str:
    """Permute the causes, with their initial values."""
    if drawn(case):
        return "random numbers follow from the place of a cause among the candidates"
    if case.model.latents.ordered and "propose" in case.job["inference"]:
        return "several orders of the same causes have the same mean, and of tied states the first are stored"
    if name_of(case) in TIES and "candidates" in case.job["inference"]:
        case = case.with_keys("inference", candidates=case.model.H)
    order = {"H": rng.permutation(case.model.H)}
    after = replace(case, start=taken(case, case.start, order))
    return Changed(case, after, lambda found: taken(case, found, inverse(order)))


def scaled_by(factor: float, case: Case, rng: np.random.Generator) -> Changed | str:
    """Scale the data, and all parameters with the unit of the data.

    Powers of two cause no rounding, and the log joints of all states change by the same constant. The addition of the
    constant is rounded, so weights change in their last digits. Weights of 0 and 1 keep their bits.
    """
    if not of(case, Gauss):
        return "counts and binary data have no unit"
    units = {**UNITS, **OWN_UNITS.get(name_of(case), {})}

    def scaled(params: Mapping[str, np.ndarray], by: float) -> Learned:
        return {name: params[name] * by ** units[name] for name in case.model.params}

    def undo(found: Learned) -> Learned:
        back = scaled(found, 1 / factor)
        if case.model.evidence:  # else it also contains the density of the values of causes
            back["free_energy"] = found["free_energy"] + case.Y.shape[1] * np.log(factor)
        return back

    after = replace(with_rows(case, case.Y * factor), start=scaled(case.start, factor))
    if "reg" in type(case.model).Options.model_fields:
        after = after.with_keys("model", reg=case.model.options.reg * factor**2)
    whole = case.job["inference"]["scheme"] in ("hard", "sample") and name_of(case) not in WEIGHED
    return Changed(case, after, undo, exact=whole and np.frexp(factor)[0] == 0.5)


def rotated(case: Case, rng: np.random.Generator) -> Changed | str:
    """Rotate data and fields around zero."""
    params, name = case.model.params, name_of(case)
    if not of(case, Gauss) or params["W"].axes != "DH" or params["W"].low > -np.inf:
        return "dimensions are not of the same kind, or fields have a sign"
    if "var" in params and "D" in params["var"].axes.replace("DD", ""):
        return "a variance belongs to one dimension"
    if name in NOT_ROUND:
        return NOT_ROUND[name]
    Q = np.linalg.qr(rng.standard_normal((case.Y.shape[1],) * 2))[0]

    def turned(values: Mapping[str, np.ndarray], R: np.ndarray) -> Learned:
        matrices = {"DH": lambda v: R @ v, "DD": lambda v: R @ v @ R.T}
        found = dict(values)
        for key in params:
            for axes, turn in matrices.items():
                if params[key].axes.endswith(axes):
                    found[key] = turn(values[key])
        return found

    after = replace(with_rows(case, case.Y @ Q.T), start=turned(case.start, Q))
    return Changed(case, after, lambda found: turned(found, Q.T))


def moved_by(distance: float, one: bool, case: Case, rng: np.random.Generator) -> Changed | str:
    """Shift all points: together with the means of clusters, or with ``data.centre``."""
    if not of(case, Gauss):
        return "counts and binary data have no origin"
    D, clusters = case.Y.shape[1], "var" in case.model.params
    move = np.where(np.arange(D) == rng.integers(D), distance, 0.0) if one else np.full(D, distance)
    Y, start = np.round(case.Y / GRID) * GRID, dict(case.start)
    if clusters:
        start["W"] = np.round(start["W"] / GRID) * GRID
    else:
        case = case.with_keys("data", centre=True)
    before = replace(with_rows(case, Y), start=start)
    after = with_rows(before, Y + move)
    far = 1 + distance / Y.std()
    if not clusters:
        return Changed(before, after, far=far)
    after = replace(after, start={**start, "W": start["W"] + move[:, None]})
    return Changed(before, after, lambda found: {**found, "W": found["W"] - move[:, None]}, far)


def doubled(case: Case, rng: np.random.Generator) -> Changed | str:
    """Repeat each point."""
    if drawn(case):
        return "random numbers follow from the index of a point"
    return Changed(case, with_rows(case, np.repeat(case.Y, 2, 0)))


def other_blocks(case: Case, rng: np.random.Generator) -> Changed:
    """Change the size of the blocks."""
    return Changed(case, case.with_keys("run", block=int(rng.integers(17, 48))))


def other_threads(case: Case, rng: np.random.Generator) -> Changed:
    """Use two threads, which must not change a bit."""
    return Changed(case, case.with_keys("run", threads=2), exact=True)


def one_dimension(factor: float, move: float, case: Case, rng: np.random.Generator) -> Changed | str:
    """Scale and shift one dimension of a model with variances for each dimension."""
    var = case.model.params.get("var")
    if var is None or "D" not in var.axes:
        return "the noise is shared by all dimensions: tests of precision compare with a longer arithmetic"
    before, D = case.with_keys("model", reg=0.0), case.Y.shape[1]
    units, moves = np.ones(D), np.zeros(D)
    at = rng.integers(D)
    units[at], moves[at] = factor, move

    def scaled(params: Mapping[str, np.ndarray], by: np.ndarray) -> np.ndarray:
        return params["var"] * (by[:, None] ** 2 if var.axes == "DH" else by[:, None] * by)

    def undo(found: Learned) -> Learned:
        W = (found["W"] - moves[:, None]) / units[:, None]
        return {**found, "W": W, "var": scaled(found, 1 / units), "free_energy": found["free_energy"] + np.log(factor)}

    start = {**case.start, "W": case.start["W"] * units[:, None] + moves[:, None], "var": scaled(case.start, units)}
    after = replace(with_rows(before, case.Y * units + moves), start=start)
    return Changed(before, after, undo, 1 + move / factor)


def outlier_of(size: float, case: Case, rng: np.random.Generator) -> Changed | str:
    """Add a point far from all other points, which the cut removes from the M-step."""
    if not case.model.evidence:
        return "without evidence there is no cut"
    if of(case, Binary):
        return "binary data have no outliers"
    signs = rng.choice([-1.0, 1.0], case.Y.shape[1])
    more, N = size * (1.0 if of(case, Poisson) else signs), len(case.Y)
    before = case.with_keys("anneal", cut={"schedule": 1.0, "share": 1.0})
    after = with_rows(before, np.vstack([case.Y, np.broadcast_to(more, signs.shape)]))
    after = after.with_keys("anneal", cut={"schedule": 1.0, "share": N / (N + 1)})

    def undo(found: Learned) -> Learned:
        return {name: found[name] for name in case.model.params}  # the evidence is the mean over all points

    return Changed(before, after, undo)


RELATIONS: dict[str, Change] = {
    "rows permuted": permuted_rows,
    "dimensions permuted": permuted_dims,
    "causes permuted": permuted_causes,
    "scaled by 1e6": partial(scaled_by, 1e6),
    "scaled by 1e-6": partial(scaled_by, 1e-6),
    "scaled by 2^70": partial(scaled_by, 2.0**70),
    "scaled by 2^-70": partial(scaled_by, 2.0**-70),
    "rotated": rotated,
    "moved by 1e5": partial(moved_by, 1e5, False),
    "moved by 2^30": partial(moved_by, 2.0**30, False),
    "one dimension moved by 1e5": partial(moved_by, 1e5, True),
    "one dimension moved by 2^30": partial(moved_by, 2.0**30, True),
    "rows doubled": doubled,
    "other blocks": other_blocks,
    "other threads": other_threads,
    "one dimension scaled by 1e8": partial(one_dimension, 1e8, 0.0),
    "one dimension at 1.7e9": partial(one_dimension, 3600.0, 1.7e9),
    "outlier of 1e6": partial(outlier_of, 1e6),
    "outlier of 1e8": partial(outlier_of, 1e8),
}
