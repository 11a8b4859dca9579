"""The report that compares two runs: evidence of the same points, matched fields, curves and jobs."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from parallel_et.control.progress import Reporter
from parallel_et.data.base import Centred, Source
from parallel_et.data.files import FileRows
from parallel_et.data.holdout import split_holdout
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.reports import field_sheets, page, plots
from parallel_et.reports.chapters import Content, bind_chapters, facts, make_choice, make_picture, write_page
from parallel_et.reports.pictures import CELLS_PER_ROW, Cell, draw_sheet
from parallel_et.reports.run_data import SAMPLE_POINTS, STRETCH_POINTS, RunData, read_run_data
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.setup import largest_magnitudes
from parallel_et.trials.runner import mean_and_error, with_error

SAME_FIELD_COSINE = 0.95
"""Smallest cosine of two equal fields."""
DATA_HINT = "--data FILE sets rows for both"
PAIRS_PER_SHEET = 100
"""Maximum number of pairs of fields on one sheet."""


class EvidencePair(NamedTuple):
    """The evidence (n,) of the same points under both runs, and a description of the points."""

    one: np.ndarray
    other: np.ndarray
    which: str


class FieldMatching(NamedTuple):
    """Pairs of fields of both runs with the largest sum of cosines: indices (k,) in each run, and cosines (k,)."""

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
    """Write the report that compares two runs: report.html and its pictures.

    Parameters
    ----------
    runs : directory of each run, with the files of a model or scheme that may be executed
    folder : folder of the report
    shape : shape of a point, if given by the user
    data : file of the points whose evidence is compared; by default the points that both runs hold out
    quiet : print errors only
    """
    report, paths = Reporter(True, quiet), [directory.path for directory, _ in runs]
    if paths[0].resolve() == paths[1].resolve():
        raise UserError(f"{paths[1]}: expected a run other than the first, found the same")
    one, other = (read_run_data(directory, shape, report, files) for directory, files in runs)
    if one.model.D != other.model.D:
        found = f"{one.model.D} and {other.model.D}"
        raise UserError(f"{paths[1]}: expected points with the same number of dimensions in both runs, found {found}")
    names = short_names(paths)
    text, pictures = bind_chapters(
        f"{names[0]} compared with {names[1]}",
        {},
        chapters(one, other, names, data, report),
        " and ".join(map(str, paths)),
    )
    write_page(folder, text, pictures, report)


def short_names(paths: Sequence[Path]) -> tuple[str, str]:
    """Return short distinct names of two runs: the ends of their paths."""
    one, other = (path.resolve().parts for path in paths)
    count = next((n for n in range(1, max(len(one), len(other))) if one[-n:] != other[-n:]), 1)
    return "/".join(one[-count:]), "/".join(other[-count:])


def chapters(
    one: RunData, other: RunData, names: tuple[str, str], data: str | None, report: Reporter
) -> Iterator[tuple[str, list[Content]]]:
    """Yield the headings and contents of the chapters."""
    left, right = facts(one), facts(other)
    both = {key: (left.get(key, ""), right.get(key, "")) for key in {**left, **right}}
    yield "Both runs", [page.comparison_table(names, both)]
    yield "Evidence", list(evidence_contents(one, other, names, data, report))
    yield "Fields", list(field_contents(one, other, names))
    if one.iterations and other.iterations:
        yield "Course of the runs", [draw_curves(one, other, names)]
    jobs = differing_keys(one.job.resolved(), other.job.resolved())
    same = page.warning_box("All keys of the jobs are equal.")
    yield "Differences of the jobs", [page.comparison_table(names, jobs) if jobs else same]


def differing_keys(
    one: Mapping[str, Any], other: Mapping[str, Any], place: str = ""
) -> dict[str, tuple[object, object]]:
    """Return the keys in which two resolved jobs differ, with both values."""
    found: dict[str, tuple[object, object]] = {}
    for key in {**one, **other}:
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differing_keys(a, b, f"{place}{key}.")
        elif a != b:
            found[f"{place}{key}"] = ("" if a is None else a, "" if b is None else b)
    return found


def evidence_contents(
    one: RunData, other: RunData, names: tuple[str, str], data: str | None, report: Reporter
) -> Iterator[Content]:
    """Yield the evidence of the same points under both runs, and the standard error of the difference."""
    pair = compare_evidence(one, other, data, report)
    if isinstance(pair, str):
        yield page.warning_box(f"Not known: {pair}.")
        return
    gaps = pair.one - pair.other
    means = [with_error(*mean_and_error(values)) for values in (pair.one, pair.other, gaps)]
    gap, error = mean_and_error(gaps)
    better = names[0] if gap > 0 else names[1]
    yield page.comparison_table((*names, "difference"), {"evidence per point, with its standard error": means})
    share = (gaps > 0).mean()
    caption = (
        f"Evidence of {pair.which} at temperature 1: {names[0]} minus {names[1]}, sorted. {names[0]} has the larger "
        f"evidence for {field_sheets.format_percent(share)} of the points. "
        + (
            f"{better} explains the points better."
            if abs(gap) > 2 * error
            else "The mean difference is smaller than twice its standard error."
        )
    )
    figure = plots.plot_evidence_differences(pair.one, pair.other)
    yield make_picture("evidence", figure, "Sorted differences of the evidence of points under two runs.", caption)


def compare_evidence(one: RunData, other: RunData, data: str | None, report: Reporter) -> EvidencePair | str:
    """Compute the evidence of the same points under both runs. Return a reason if this is impossible."""
    if not (one.model.evidence and other.model.evidence):
        return "one of the models has no evidence"
    if data is not None:
        table = FileRows(data)
        if table.dims != one.model.D:
            raise UserError(f"{data}: expected points of {one.model.D} dimensions, found {table.dims}")
        rows, which = np.arange(table.points), f"rows of {data}"
        sources = [centred(table, run_data) for run_data in (one, other)]
    elif one.sample is None or other.sample is None:
        return f"the data of a run cannot be read ({one.warning or other.warning}); {DATA_HINT}"
    elif one.result.metadata["data fingerprint"] != other.result.metadata["data fingerprint"]:
        return f"the runs have different data; {DATA_HINT}"
    else:
        sources = [one.sample.source, other.sample.source]
        rows, which = common_rows(one, other, sources[0])
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE_POINTS)).astype(int))]
    report.start(2 * len(rows), 0)
    found = []
    for number, (run_data, source) in enumerate(zip((one, other), sources, strict=True)):
        inference, evidence = Inference(run_data.model, run_data.scheme, run_data.params, ("evidence",)), []
        for start in range(0, len(rows), STRETCH_POINTS):
            some = rows[start : start + STRETCH_POINTS]
            Y = np.concatenate([source.read(row, row + 1)[:, : source.dims] for row in some.tolist()])
            largest_magnitudes(Y, some, source.name)
            evidence.append(inference.block(np.asarray(Y, np.float64), start)["evidence"])
            done = number * len(rows) + start + len(some)
            report.update(done, f"{done} of {2 * len(rows)} points inferred")
        found.append(np.concatenate(evidence))
    return EvidencePair(found[0], found[1], f"{len(rows)} {which}")


def common_rows(one: RunData, other: RunData, source: Source) -> tuple[np.ndarray, str]:
    """Return rows that no run has learned from, or all rows if there are none, and a description of the rows."""
    held = []
    for run_data in (one, other):
        aside = split_holdout(source, run_data.job.data.holdout, run_data.job.run.seed)[1]
        held.append(np.empty(0, int) if aside is None else aside.row_numbers(0, aside.points))
    both = np.intersect1d(held[0], held[1])
    if len(both):
        return both, "rows that neither run has learned from"
    who = "each" if not held[0].size and not held[1].size else "at least one"
    return np.arange(source.points), f"rows of the data that {who} of the runs has learned from"


def centred(source: Source, run_data: RunData) -> Source:
    """Return the points of a source with the mean of the run's data subtracted, if the run is centred."""
    return Centred(source, run_data.result.data["mean"]) if "mean" in run_data.result.data else source


def field_contents(one: RunData, other: RunData, names: tuple[str, str]) -> Iterator[Content]:
    """Yield the fields of both runs in matched pairs."""
    matching = match_fields(one.fields, other.fields)
    count = len(matching.cosines)
    same = int((matching.cosines > SAME_FIELD_COSINE).sum())
    rest = abs(one.model.H - other.model.H)
    larger = names[int(other.model.H > one.model.H)]
    more = f" Causes of {larger} without a partner: {rest}." if rest else ""
    caption = (
        f"Matched pairs of fields: {names[0]} above, {names[1]} below. The matching maximises the sum of cosines. "
        "The label of a pair shows the indices of both causes and their cosine; the most similar pair is first. "
        f"{same} of {count} pairs have a cosine above {SAME_FIELD_COSINE}; the mean cosine is "
        f"{matching.cosines.mean():.3f}.{more}"
    )
    if count > PAIRS_PER_SHEET:
        caption += f" {PAIRS_PER_SHEET} pairs are shown, evenly spaced."
    shown = np.concatenate([one.fields, other.fields], axis=1)
    draw = partial(draw_pairs, one, other, matching)
    yield make_choice("matched", draw, shown, f"{min(count, PAIRS_PER_SHEET)} pairs of fields of two runs.", caption)


def match_fields(one: np.ndarray, other: np.ndarray) -> FieldMatching:
    """Match fields (D, H) and (D, H') in pairs with the largest sum of cosines."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    units = [fields / np.maximum(np.linalg.norm(fields, axis=0), np.finfo(float).tiny) for fields in (one, other)]
    cosines = units[0].T @ units[1]
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    order = np.argsort(-cosines[rows, columns], kind="stable")
    return FieldMatching(rows[order], columns[order], cosines[rows, columns][order])


def draw_pairs(one: RunData, other: RunData, matching: FieldMatching, own: bool) -> Figure:
    """Draw pairs of fields, one above the other."""
    cells = []
    for place, pair in enumerate(field_sheets.pick_evenly(np.arange(len(matching.cosines)), PAIRS_PER_SHEET)):
        row, column = divmod(place, CELLS_PER_ROW)
        h, k, cosine = matching.one[pair], matching.other[pair], matching.cosines[pair]
        cells.append(Cell(2 * row, column, one.fields[:, h], f"{h} {k}: {cosine:.2f}"))
        cells.append(Cell(2 * row + 1, column, other.fields[:, k]))
    style = field_sheets.cell_style(one)
    return draw_sheet(cells, style._replace(signed=style.signed or field_sheets.cell_style(other).signed), own=own)


def draw_curves(one: RunData, other: RunData, names: tuple[str, str]) -> page.Picture:
    """Draw the curves of both runs in common axes."""
    histories = {names[0]: one.result.history, names[1]: other.result.history}
    figure = plots.plot_curves(histories, list(dict.fromkeys([*one.params, *other.params])))
    caption = (
        "Values of both runs over the iterations. The free energy is that of the E-step. It is grey before the final "
        "temperature. Dashed curves are the evidence of held-out points. Values that are constant and equal in both "
        "runs have no curve."
    )
    return make_picture("curves", figure, f"Curves of {names[0]} and {names[1]} over the iterations.", caption)
