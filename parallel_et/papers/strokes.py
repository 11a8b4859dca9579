"""Strokes that hide each other, coded by maximal causes with strengths and by linear sparse coding (TH fig. 3.6)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from parallel_et.control.signals import STOPPED
from parallel_et.data.strokes import Strokes
from parallel_et.inference.posterior import Inference
from parallel_et.papers.table import Row
from parallel_et.papers.variants import slug
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import draw_fields, figure_of, png
from parallel_et.reports.plots import PALETTE, plain
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import open_source
from parallel_et.runs.stored_run import StoredRun, read_together
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_whole
from parallel_et.trials.comparison import check_sklearn
from parallel_et.trials.runner import TrialsOptions

SOME = 2000
"""Patches that are looked at, evenly spread."""
MOST = 5
"""Strokes of a patch up to which they are told apart."""
LEARNED, EPOCHS = 20_000, 5
"""Patches, evenly spread, that linear components are learned of, and in how many passes."""
USED = 1e-9
"""A component counts as used from this magnitude of its coefficient on."""


class Coded(NamedTuple):
    """Of patches: how many components each uses, and the mean squared errors beside what was seen and without noise."""

    used: np.ndarray
    error: np.ndarray
    clean: np.ndarray
    seconds: float

    def words(self) -> str:
        """For the table."""
        used, error, clean = (values.mean() for values in self[:3])
        return f"{used:.1f} components a patch, MSE {error:.0f}, without noise {clean:.0f}"


def beside_linear(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Train each variant of a job on patches of strokes, and linear codes of several penalties; none if stopped."""
    ranks.from_root(check_sklearn)
    found: dict[str, Coded] = {}
    for name, more in experiment["variants"].items():
        folder, begun = place.with_name(f"{place.name}-{slug(name)}"), perf_counter()
        run = TrainOptions(options.job, [*options.set, *more], str(folder), max_time=options.max_time)
        if train_job(ranks, run, draw_fields) == STOPPED:
            return []
        learned = read_together(ranks, RunDirectory(str(folder)), {})
        found[name] = ranks.on_root_alone(partial(by_maximum, learned, perf_counter() - begun))
    source = strokes_of(learned)
    found |= ranks.on_root_alone(partial(by_linear, source, learned, experiment["penalties"], experiment["at_most"]))
    counts = source.counts(0, source.points)[numbers(source, SOME)]
    ranks.from_root(lambda: write_whole(place.with_suffix(".png"), png(by_strokes(found, counts))))
    return [
        Row(
            f"{experiment['job']}: {name}",
            experiment["published"].get(name, ""),
            one.words(),
            judged(name, found, experiment["variants"]),
            1,
            one.seconds,
        )
        for name, one in found.items()
    ]


def strokes_of(run: StoredRun) -> Strokes:
    """The patches that a run has learned from."""
    source = open_source(run.job)
    assert isinstance(source, Strokes)
    return source


def by_maximum(run: StoredRun, seconds: float, root: Ranks) -> Coded:
    """Of the causes that are most often drawn together, with the expected mean."""
    source = strokes_of(run)
    made = Inference(run.model, run.scheme, run.params, ("map", "reconstruction")).block(patches(source)[0])
    return coded(source, made["map"].sum(1), made["reconstruction"], seconds)


def judged(name: str, found: dict[str, Coded], variants: Any) -> str:
    """Whether no linear code has as few components and as small an error."""
    if name not in variants:
        return ""
    own = found[name]
    linear = [one for other, one in found.items() if other not in variants]
    beaten = any(a.used.mean() <= own.used.mean() and a.error.mean() <= own.error.mean() for a in linear)
    return "worse" if beaten else "met"


def numbers(source: Strokes, count: int) -> np.ndarray:
    """Which patches so many are, evenly spread."""
    return np.linspace(0, source.points - 1, min(source.points, count)).astype(int)


def patches(source: Strokes, count: int = SOME) -> tuple[np.ndarray, np.ndarray]:
    """These as they were seen, and without noise."""
    seen, some = source.read(0, source.points)[:, : source.dims], numbers(source, count)
    return np.ascontiguousarray(seen[some]), source.clean(0, source.points)[some]


def coded(source: Strokes, used: np.ndarray, reconstruction: np.ndarray, seconds: float) -> Coded:
    """What becomes of the patches that are looked at."""
    error, clean = (((one - reconstruction) ** 2).mean(1) for one in patches(source))
    return Coded(used, error, clean, seconds)


def by_linear(
    source: Strokes, run: StoredRun, penalties: Sequence[float], at_most: Sequence[int], root: Ranks
) -> dict[str, Coded]:
    """Of as many components that add up: with penalties on the magnitudes of coefficients (TH eq. 3.1), and by pursuit.

    Orthogonal matching pursuit takes a number of components ``at_most``, with coefficients that no penalty makes
    smaller; of the components that the penalties have led to, those count that leave the least error.
    """
    from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode

    Y, found, pursued = patches(source)[0], dict[str, Coded](), {k: list[Coded]() for k in at_most}

    def code_of(components: np.ndarray, begun: float, **how: Any) -> Coded:
        code = sparse_encode(Y, components, **how)
        return coded(source, (np.abs(code) > USED).sum(1), code @ components, perf_counter() - begun)

    for penalty in penalties:
        begun = perf_counter()
        coder = MiniBatchDictionaryLearning(
            run.model.H, alpha=penalty, max_iter=EPOCHS, random_state=run.job.run.seed, fit_algorithm="cd"
        ).fit(patches(source, LEARNED)[0])
        components = coder.components_
        found[f"linear, a = {penalty}"] = code_of(components, begun, algorithm="lasso_lars", alpha=penalty)
        for k, codes in pursued.items():
            codes.append(code_of(components, begun, algorithm="omp", n_nonzero_coefs=k))
    best = {k: min(codes, key=lambda one: one.error.mean()) for k, codes in pursued.items()}
    return found | {f"linear, at most {k}": one for k, one in best.items()}


def by_strokes(found: dict[str, Coded], counts: np.ndarray) -> Any:
    """Components and error of each code over the number of strokes that are seen in a patch, (n,)."""
    figure = figure_of(9.0, 3.2)
    for axis, what in zip(figure.subplots(1, 2), ("used", "error"), strict=True):
        for number, (name, one) in enumerate(found.items()):
            at = [k for k in range(MOST + 1) if (counts == k).any()]
            mean = [getattr(one, what)[counts == k].mean() for k in at]
            again, colour = divmod(number, len(PALETTE) - 1)
            axis.plot(at, mean, ".--" if again else ".-", color=PALETTE[1:][colour], label=name)
        axis.set_xlabel("strokes in a patch", fontsize=8)
        axis.set_ylabel("components" if what == "used" else "mean squared error", fontsize=8)
        axis.set_yscale("symlog" if what == "used" else "linear")
        plain(axis)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    return figure
