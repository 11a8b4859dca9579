"""Two runs side by side: their jobs and courses, which fields they share, and which explains points better."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from parallel_et.control.progress import Reporter
from parallel_et.data.base import Centred, Source
from parallel_et.data.files import FileRows
from parallel_et.data.holdout import split
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.reports import field_sheets, page, plots
from parallel_et.reports.chapters import Content, bound, facts, picture, to_choose, write_page
from parallel_et.reports.pictures import WIDEST, Cell, draw_sheet
from parallel_et.reports.run_data import SAMPLE, STRETCH, Study, look_at
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import largest_of
from parallel_et.trials.runner import mean_and_error, with_error

ALIKE = 0.95
"""Cosine from which on two fields are told to be the same."""
WAY_OUT = "--data FILE names rows for both"
MOST_PAIRS = 100
"""On one sheet."""


class Judged(NamedTuple):
    """The evidence (n,) of the same points under both runs, and which points these are, in words."""

    one: np.ndarray
    other: np.ndarray
    which: str


class Matching(NamedTuple):
    """Pairs of a field of each run, (k,) each and of the largest sum of cosines, and those, (k,)."""

    one: np.ndarray
    other: np.ndarray
    cosines: np.ndarray


def write_comparison(
    runs: Sequence[tuple[RunDirectory, Mapping[str, str]]],
    folder: Path,
    shape: tuple[int, ...] | None = None,
    data: str | None = None,
    quiet: bool = False,
) -> None:
    """Read two runs and write the page about both, and its pictures, into a folder.

    Parameters
    ----------
    runs : each with the files of a model or a scheme that may be executed for it
    data : place of the points whose evidence is compared; by default those that both hold out
    """
    report, paths = Reporter(True, quiet), [directory.path for directory, _ in runs]
    if paths[0].resolve() == paths[1].resolve():
        raise UserError(f"{paths[1]}: expected another run than the first, found the same")
    one, other = (look_at(directory, shape, report, files) for directory, files in runs)
    if one.model.D != other.model.D:
        found = f"{one.model.D} and {other.model.D}"
        raise UserError(f"{paths[1]}: expected points of as many dimensions as those of the other, found {found}")
    names = names_of(paths)
    text, pictures = bound(
        f"{names[0]} beside {names[1]}",
        {},
        chapters(one, other, names, data, report),
        " and ".join(map(str, paths)),
    )
    write_page(folder, text, pictures, report)


def names_of(paths: Sequence[Path]) -> tuple[str, str]:
    """What to call the runs: the ends of their paths, as far as it takes to tell them apart."""
    one, other = (path.resolve().parts for path in paths)
    count = next((n for n in range(1, max(len(one), len(other))) if one[-n:] != other[-n:]), 1)
    return "/".join(one[-count:]), "/".join(other[-count:])


def chapters(
    one: Study, other: Study, names: tuple[str, str], data: str | None, report: Reporter
) -> Iterator[tuple[str, list[Content]]]:
    """Headings and what stands under them."""
    left, right = facts(one), facts(other)
    both = {key: (left.get(key, ""), right.get(key, "")) for key in {**left, **right}}
    yield "Both runs", [page.columns(names, both)]
    yield "Which explains points better", list(of_evidence(one, other, names, data, report))
    yield "Fields", list(of_fields(one, other, names))
    if one.iterations and other.iterations:
        yield "Course of the runs", [draw_curves(one, other, names)]
    jobs = differing(one.job.resolved(), other.job.resolved())
    same = page.note("The jobs are the same in all keys.")
    yield "Keys in which the jobs differ", [page.columns(names, jobs) if jobs else same]


def differing(one: Mapping[str, Any], other: Mapping[str, Any], place: str = "") -> dict[str, tuple[object, object]]:
    """Keys in which two resolved jobs differ, and what each has."""
    found: dict[str, tuple[object, object]] = {}
    for key in {**one, **other}:
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differing(a, b, f"{place}{key}.")
        elif a != b:
            found[f"{place}{key}"] = ("" if a is None else a, "" if b is None else b)
    return found


def of_evidence(
    one: Study, other: Study, names: tuple[str, str], data: str | None, report: Reporter
) -> Iterator[Content]:
    """The evidence of the same points under both, and how sure the difference is."""
    judged = judge(one, other, data, report)
    if isinstance(judged, str):
        yield page.note(f"Not known: {judged}.")
        return
    gaps = judged.one - judged.other
    means = [with_error(*mean_and_error(values)) for values in (judged.one, judged.other, gaps)]
    gap, error = mean_and_error(gaps)
    better = names[0] if gap > 0 else names[1]
    yield page.columns((*names, "difference"), {"evidence a point, with its standard error": means})
    share = (gaps > 0).mean()
    caption = (
        f"Evidence of {judged.which}, at temperature 1, of the first less that of the second, sorted: the first is "
        f"larger for {field_sheets.percent(share)} of the points. "
        + (
            f"{better} explains them better."
            if abs(gap) > 2 * error
            else "The difference is not beyond twice its error."
        )
    )
    figure = plots.side_by_side(judged.one, judged.other)
    yield picture("evidence", figure, "Sorted differences of the evidence of points under two runs.", caption)


def judge(one: Study, other: Study, data: str | None, report: Reporter) -> Judged | str:
    """The evidence of the same points under both runs, or why there is none."""
    if not (one.model.evidence and other.model.evidence):
        return "a model of the two has no evidence"
    if data is not None:
        table = FileRows(data)
        if table.dims != one.model.D:
            raise UserError(f"{data}: expected points of {one.model.D} dimensions, found {table.dims}")
        rows, which = np.arange(table.points), f"rows of {data}"
        sources = [seen(table, study) for study in (one, other)]
    elif one.sample is None or other.sample is None:
        return f"the data of a run cannot be read ({one.trouble or other.trouble}); {WAY_OUT}"
    elif one.result.about["data fingerprint"] != other.result.about["data fingerprint"]:
        return f"the runs are of different data; {WAY_OUT}"
    else:
        sources = [one.sample.source, other.sample.source]
        rows, which = common(one, other, sources[0])
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(int))]
    report.begin(2 * len(rows), 0)
    found = []
    for number, (study, source) in enumerate(zip((one, other), sources, strict=True)):
        inference, evidence = Inference(study.model, study.scheme, study.params, ("evidence",)), []
        for start in range(0, len(rows), STRETCH):
            some = rows[start : start + STRETCH]
            Y = np.concatenate([source.read(row, row + 1)[:, : source.dims] for row in some.tolist()])
            largest_of(Y, some, source.name)
            evidence.append(inference.block(np.asarray(Y, np.float64), start)["evidence"])
            done = number * len(rows) + start + len(some)
            report.step(done, f"{done} of {2 * len(rows)} points inferred")
        found.append(np.concatenate(evidence))
    return Judged(found[0], found[1], f"{len(rows)} {which}")


def common(one: Study, other: Study, source: Source) -> tuple[np.ndarray, str]:
    """Rows of the same data that neither run has learned from, if there are such, else any; and which these are."""
    held = []
    for study in (one, other):
        aside = split(source, study.job.data.holdout, study.job.run.seed)[1]
        held.append(np.empty(0, int) if aside is None else aside.numbers(0, aside.points))
    both = np.intersect1d(held[0], held[1])
    if len(both):
        return both, "rows that neither run has learned from"
    who = "each" if not held[0].size and not held[1].size else "at least one"
    return np.arange(source.points), f"rows of the data, of which {who} of the runs has learned"


def seen(source: Source, study: Study) -> Source:
    """Points as the model of a run sees them."""
    return Centred(source, study.result.data["mean"]) if "mean" in study.result.data else source


def of_fields(one: Study, other: Study, names: tuple[str, str]) -> Iterator[Content]:
    """Fields of both, in pairs that are most alike."""
    matching = match(one.fields, other.fields)
    alike, count = int((matching.cosines > ALIKE).sum()), len(matching.cosines)
    rest = abs(one.model.H - other.model.H)
    more = f" {rest} of the causes of {names[int(other.model.H > one.model.H)]} are left over." if rest else ""
    caption = (
        f"Pairs of a field of {names[0]}, above, and one of {names[1]}, below, such that the sum of the cosines is "
        f"largest, with their numbers and cosines; the most alike first. {alike} of {count} pairs have a cosine above "
        f"{ALIKE}, the mean is {matching.cosines.mean():.3f}.{more}"
    )
    if count > MOST_PAIRS:
        caption += f" {MOST_PAIRS} of them are shown, evenly spread."
    shown = np.concatenate([one.fields, other.fields], axis=1)
    draw = partial(draw_pairs, one, other, matching)
    yield to_choose("matched", draw, shown, f"{min(count, MOST_PAIRS)} pairs of fields of two runs.", caption)


def match(one: np.ndarray, other: np.ndarray) -> Matching:
    """Pairs of the fields (D, H) and (D, H'), each in one pair at most, with the largest sum of cosines."""
    from scipy.optimize import linear_sum_assignment  # takes its time to load

    units = [fields / np.maximum(np.linalg.norm(fields, axis=0), np.finfo(float).tiny) for fields in (one, other)]
    cosines = units[0].T @ units[1]
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    order = np.argsort(-cosines[rows, columns], kind="stable")
    return Matching(rows[order], columns[order], cosines[rows, columns][order])


def draw_pairs(one: Study, other: Study, matching: Matching, own: bool) -> Figure:
    """Pairs of fields, one above the other."""
    cells = []
    for place, pair in enumerate(field_sheets.evenly(np.arange(len(matching.cosines)), MOST_PAIRS)):
        row, column = divmod(place, WIDEST)
        h, k, cosine = matching.one[pair], matching.other[pair], matching.cosines[pair]
        cells.append(Cell(2 * row, column, one.fields[:, h], f"{h} {k}: {cosine:.2f}"))
        cells.append(Cell(2 * row + 1, column, other.fields[:, k]))
    look = field_sheets.look_of(one)
    return draw_sheet(cells, look._replace(signed=look.signed or field_sheets.look_of(other).signed), own=own)


def draw_curves(one: Study, other: Study, names: tuple[str, str]) -> page.Picture:
    """The curves of both over each other."""
    histories = {names[0]: one.result.history, names[1]: other.result.history}
    figure = plots.curves(histories, list(dict.fromkeys([*one.params, *other.params])))
    caption = (
        "Both over the iterations. Free energies are those of the E-step, and grey while the temperature is another "
        "than at the end; dashed is the evidence of rows held out. What is the same in both all the time has no curve."
    )
    return picture("curves", figure, f"Curves of {names[0]} and {names[1]} over the iterations.", caption)
