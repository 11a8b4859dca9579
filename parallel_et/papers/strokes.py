"""Strokes that occlude each other, coded by maximal causes with strengths and by linear sparse coding (TH fig. 3.6)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from parallel_et.control.signals import EXIT_STOPPED
from parallel_et.data.strokes import Strokes
from parallel_et.inference.posterior import Inference
from parallel_et.papers.table import Row
from parallel_et.papers.variants import slug
from parallel_et.parallel.communicator import Ranks
from parallel_et.reports.pictures import draw_fields, encode_png, new_figure
from parallel_et.reports.plots import PALETTE, style_axis
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import open_source
from parallel_et.runs.stored_run import StoredRun, read_on_all_ranks
from parallel_et.runs.train_job import TrainOptions, train_job
from parallel_et.storage.atomic import write_atomically
from parallel_et.trials.comparison import check_sklearn
from parallel_et.trials.runner import TrialsOptions

PATCH_COUNT = 2000
"""Number of evaluated patches, evenly spaced."""
LARGEST_STROKE_COUNT = 5
"""Largest number of strokes in a patch that is drawn."""
TRAINING_PATCHES, TRAINING_EPOCHS = 20_000, 5
"""Number of patches from which linear components are learned, and number of passes."""
LEAST_COEFFICIENT = 1e-9
"""Smallest coefficient of a used component."""


class CodeOutcome(NamedTuple):
    """Codes of patches.

    Attributes
    ----------
    used : (n,) number of components
    error, clean : (n,) mean squared error, compared with the noisy and with the noiseless patch
    seconds : duration of learning and coding
    """

    used: np.ndarray
    error: np.ndarray
    clean: np.ndarray
    seconds: float

    def summary(self) -> str:
        """Return the means in words, for the table."""
        used, error, clean = (values.mean() for values in self[:3])
        return f"{used:.1f} components per patch, MSE {error:.0f}, without noise {clean:.0f}"


def stroke_rows(
    ranks: Ranks, experiment: dict[str, Any], options: TrialsOptions, place: Path, seeds: range
) -> list[Row]:
    """Train each variant of a job on patches of strokes, and linear codes. Return their rows, or none if stopped."""
    ranks.from_root(check_sklearn)
    found: dict[str, CodeOutcome] = {}
    for name, more in experiment["variants"].items():
        folder, start_time = place.with_name(f"{place.name}-{slug(name)}"), perf_counter()
        run = TrainOptions(options.job, [*options.set, *more], str(folder), max_time=options.max_time)
        if train_job(ranks, run, draw_fields) == EXIT_STOPPED:
            return []
        learned = read_on_all_ranks(ranks, RunDirectory(str(folder)), {})
        found[name] = ranks.run_on_root(partial(code_by_causes, learned, perf_counter() - start_time))
    source = open_strokes(learned)
    found |= ranks.run_on_root(partial(code_linearly, source, learned, experiment["penalties"], experiment["at_most"]))
    counts = source.counts(0, source.points)[pick_rows(source, PATCH_COUNT)]
    ranks.from_root(lambda: write_atomically(place.with_suffix(".png"), encode_png(draw_by_strokes(found, counts))))
    return [
        Row(
            f"{experiment['job']}: {name}",
            experiment["published"].get(name, ""),
            one.summary(),
            verdict_on(name, found, experiment["variants"]),
            1,
            one.seconds,
        )
        for name, one in found.items()
    ]


def open_strokes(run: StoredRun) -> Strokes:
    """Open the patches of a run."""
    source = open_source(run.job)
    assert isinstance(source, Strokes)
    return source


def code_by_causes(run: StoredRun, seconds: float, root: Ranks) -> CodeOutcome:
    """Evaluate the code of the MAP state, with the posterior mean as reconstruction."""
    source = open_strokes(run)
    made = Inference(run.model, run.scheme, run.params, ("map", "reconstruction")).block(pick_patches(source)[0])
    return evaluate_code(source, made["map"].sum(1), made["reconstruction"], seconds)


def verdict_on(name: str, found: dict[str, CodeOutcome], variants: Any) -> str:
    """Return "worse" if a linear code has at most as large a number of components and error, else "met"."""
    if name not in variants:
        return ""
    own = found[name]
    linear = [one for other, one in found.items() if other not in variants]
    beaten = any(a.used.mean() <= own.used.mean() and a.error.mean() <= own.error.mean() for a in linear)
    return "worse" if beaten else "met"


def pick_rows(source: Strokes, count: int) -> np.ndarray:
    """Return the rows of ``count`` patches, evenly spaced."""
    return np.linspace(0, source.points - 1, min(source.points, count)).astype(int)


def pick_patches(source: Strokes, count: int = PATCH_COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` patches with and without noise."""
    seen, some = source.read(0, source.points)[:, : source.dims], pick_rows(source, count)
    return np.ascontiguousarray(seen[some]), source.clean(0, source.points)[some]


def evaluate_code(source: Strokes, used: np.ndarray, reconstruction: np.ndarray, seconds: float) -> CodeOutcome:
    """Compute the errors of reconstructed patches."""
    error, clean = (((one - reconstruction) ** 2).mean(1) for one in pick_patches(source))
    return CodeOutcome(used, error, clean, seconds)


def code_linearly(
    source: Strokes, run: StoredRun, penalties: Sequence[float], at_most: Sequence[int], root: Ranks
) -> dict[str, CodeOutcome]:
    """Learn H linear components, and code patches with an L1 penalty (TH eq. 3.1) and by orthogonal matching pursuit.

    Parameters
    ----------
    penalties : weights of the L1 penalty
    at_most : numbers of components of the pursuit, which uses the components with the smallest error
    """
    from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode

    Y, found, pursued = pick_patches(source)[0], dict[str, CodeOutcome](), {k: list[CodeOutcome]() for k in at_most}

    def code_of(components: np.ndarray, start_time: float, **how: Any) -> CodeOutcome:
        code = sparse_encode(Y, components, **how)
        return evaluate_code(
            source, (np.abs(code) > LEAST_COEFFICIENT).sum(1), code @ components, perf_counter() - start_time
        )

    for penalty in penalties:
        start_time = perf_counter()
        coder = MiniBatchDictionaryLearning(
            run.model.H, alpha=penalty, max_iter=TRAINING_EPOCHS, random_state=run.job.run.seed, fit_algorithm="cd"
        ).fit(pick_patches(source, TRAINING_PATCHES)[0])
        components = coder.components_
        found[f"linear, a = {penalty}"] = code_of(components, start_time, algorithm="lasso_lars", alpha=penalty)
        for k, codes in pursued.items():
            codes.append(code_of(components, start_time, algorithm="omp", n_nonzero_coefs=k))
    best = {k: min(codes, key=lambda one: one.error.mean()) for k, codes in pursued.items()}
    return found | {f"linear, at most {k}": one for k, one in best.items()}


def draw_by_strokes(found: dict[str, CodeOutcome], counts: np.ndarray) -> Any:
    """Draw components and error of each code over the number of visible strokes in a patch, (n,)."""
    figure = new_figure(9.0, 3.2)
    for axis, what in zip(figure.subplots(1, 2), ("used", "error"), strict=True):
        for number, (name, one) in enumerate(found.items()):
            at = [k for k in range(LARGEST_STROKE_COUNT + 1) if (counts == k).any()]
            mean = [getattr(one, what)[counts == k].mean() for k in at]
            again, colour = divmod(number, len(PALETTE) - 1)
            axis.plot(at, mean, ".--" if again else ".-", color=PALETTE[1:][colour], label=name)
        axis.set_xlabel("strokes in a patch", fontsize=8)
        axis.set_ylabel("components" if what == "used" else "mean squared error", fontsize=8)
        axis.set_yscale("symlog" if what == "used" else "linear")
        style_axis(axis)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    return figure
