"""Patches prepared and written by all ranks, piece by piece: the passes over them, and what is told of them."""

import json
import shlex
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.parallel.exact_sum import ExactSum
from parallel_et.preprocessing.album import Album, Entry, Places
from parallel_et.preprocessing.filters import Zca, zca_of
from parallel_et.storage.output import Output, Table
from parallel_et.storage.row_pass import Sweep, count_rows, pieces

PASSING = ("inputs", "fresh", "quiet", "max_time")
"""Options that make no difference to what is cut, or stand elsewhere."""
SINGLE = float(np.finfo(np.float32).max)
"""The largest number that can be stored."""
GROUP = 1 << 23
"""Bytes of patches in double precision that are prepared at a time, in 16 to 4096 patches."""
MEANS = "means"
"""The table of what was subtracted from patches that are free of their means."""
LARGE = 1 << 27
"""Bytes of patches that are cut at a time where images are not kept: the more, the less often one is filtered."""


def refuse_bad(options: Any, checks: Sequence[tuple[str, bool, str]]) -> None:
    """Refuse the first value that is not good; ``checks``: name of an option, whether it is good, what was expected."""
    for option, good, expected in checks:
        if not good:
            found = vars(options)[option]
            words = " ".join(map(str, found)) if isinstance(found, (list, tuple)) else found
            raise UserError(f"--{option.replace('_', '-')}: expected {expected}, found {words}")


def command_of(name: str, options: Any) -> str:
    """The command that cuts the same, the same for all that do."""
    words = ["python", "-m", "parallel_et", name, *options.inputs]
    for option, value in vars(options).items():
        if option not in PASSING and value is not None and value is not False:
            values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
            words += [
                f"--{option.replace('_', '-')}",
                *(str(v).removesuffix(".0") if isinstance(v, float) else str(v) for v in values),
            ]
    return shlex.join(words)


def survey(sweep: Sweep, album: Album, files: Sequence[str], skip: bool, inputs: Sequence[str]) -> None:
    """Give the album the good images of all files, each looked at by one rank, and say which are bad."""
    entries: list[Entry] = []
    bad: list[str] = []

    def look(first: int, last: int) -> None:
        try:
            entries.extend(album.look(files[first]))
        except UserError as error:
            if not skip:
                raise
            bad.append(str(error))

    sweep.over([(i, i + 1) for i in range(len(files))], len(files), "files", "looked at", look)
    ranks = sweep.ranks
    every, wrong = ranks.of_root(ranks.gather(entries)), ranks.of_root(ranks.gather(bad))
    album.settle([entry for some in every for entry in some])
    lines = [line for some in wrong for line in some]
    for line in lines:
        sweep.report.say(f"skipped {line}")
    if not album.entries:
        raise UserError(f"{' '.join(inputs)}: expected {album.kind}, found {len(lines)} bad files alone")


def cut(sweep: Sweep, album: Album, places: Places, command: str, words: str) -> str:
    """Say in ``words`` what is cut, then cut, prepare and write it; returns where in the file it is."""
    ranks, report, unit = sweep.ranks, sweep.report, album.unit
    report.say(
        f"{places.points} {unit} {words} from {len(album.entries)} {album.kind} with {places.total} "
        f"places, on {ranks.size} rank{'s' if ranks.size > 1 else ''}"
        + ("" if album.keeps else f"; too large to be kept, the {album.kind} are filtered again for each piece")
    )
    cutting = Cutting(sweep, album, places)
    cutting.prepare()
    what = about(cutting, command)
    tables = {unit: Table((places.points, *album.shape), np.float32, what)}
    if album.mean_free:
        tables[MEANS] = Table((places.points,), np.float64)
    arrays = album.truth()
    if cutting.zca is not None:
        arrays |= {f"zca/{name}": values for name, values in vars(cutting.zca).items()}
    with sweep.open(tables, what, arrays) as output:
        if there := count_rows(output.written):
            report.say(f"{there} {unit} are there already")
        cutting.write(output)
    return f":/{unit}"


class Cutting:
    """Patches in pieces of whole groups; what is computed from a group does not depend on the number of ranks."""

    def __init__(self, sweep: Sweep, album: Album, places: Places) -> None:
        self.sweep, self.album, self.places = sweep, album, places
        self.dims = prod(album.patch)
        self.group = 1 << min(max((GROUP // (8 * self.dims)).bit_length() - 1, 4), 12)
        most = -(-places.points // (self.group * sweep.ranks.size))
        groups = 1 if album.keeps else max(1, min(LARGE // (4 * self.dims * self.group), most))
        self.piece = groups * self.group
        self.zca: Zca | None = None
        self.span: tuple[float, float] | None = None

    def prepare(self) -> None:
        """Find out what the steps need to know of all patches; collective."""
        if self.album.whitening is not None:
            self.zca = self._zca(self.album.whitening)
        if self.album.ranging is not None:
            self.span = self._span(self.album.ranging)

    def write(self, output: Output) -> None:
        """Write all patches that are not yet written; collective."""
        shape, unit = self.album.shape, self.album.unit

        def make(first: int, last: int) -> dict[str, np.ndarray]:
            found = self._cut(first, last)
            same = prod(shape) == self.dims  # then a patch takes the place of what it is made from
            patches = found.reshape(-1, *shape) if same else np.empty((len(found), *shape), np.float32)
            means = {MEANS: np.empty(len(found))} if self.album.mean_free else {}
            for part in self._groups(found):
                for values in means.values():
                    values[part] = found[part].reshape(-1, self.dims).mean(1, dtype=np.float64)
                patches[part] = self.album.prepare(found[part], self.zca, self.span)
            return {unit: patches, **means}

        self.sweep.fill(output, (self.group, self.piece), make, unit)

    def _cut(self, first: int, last: int) -> np.ndarray:
        return self.album.cut(*self.places.of(first, last))

    def _groups(self, patches: np.ndarray) -> Iterator[slice]:
        for start in range(0, len(patches), self.group):
            yield slice(start, min(start + self.group, len(patches)))

    def _zca(self, epsilon: float) -> Zca:
        ranks, points = self.sweep.ranks, self.places.points
        sums = ExactSum({"first": (self.dims,), "second": (self.dims, self.dims)})
        largest = max(entry.largest for entry in self.album.entries) * (2 if self.album.steps.mean_free else 1)
        sums.reset({"first": largest, "second": largest**2}, points, self.group)

        def work(first: int, last: int) -> None:
            patches = self._cut(first, last)
            for part in self._groups(patches):
                X = self.album.prepare(patches[part], None, None).reshape(-1, self.dims)
                sums.add("first", X.sum(0))
                sums.add("second", X.T @ X)

        self.sweep.over(pieces(points, self.group, self.piece), points, self.album.unit, "covariance of", work)
        with ranks.together():
            sums.check()
        found = sums.on_root(ranks)
        zca = Zca(np.empty(self.dims), np.empty((self.dims, self.dims)))
        if ranks.is_root:
            zca = zca_of(found["first"], found["second"], points, epsilon)
        shared = ranks.share({"mean": zca.mean, "matrix": zca.matrix})
        return Zca(shared["mean"], np.ascontiguousarray(shared["matrix"]))  # products round by the layout

    def _span(self, option: str) -> tuple[float, float]:
        ranks, points, low, high = self.sweep.ranks, self.places.points, np.inf, -np.inf

        def work(first: int, last: int) -> None:
            nonlocal low, high
            patches = self._cut(first, last)
            for part in self._groups(patches):
                values = self.album.prepare(patches[part], self.zca, None)
                low, high = min(low, float(values.min())), max(high, float(values.max()))

        self.sweep.over(pieces(points, self.group, self.piece), points, self.album.unit, "range of", work)
        low, high = -ranks.max(-low), ranks.max(high)
        if low == high:
            raise UserError(f"{option}: expected {self.album.unit} of different values, found {low:g} everywhere")
        return low, high


def about(cutting: Cutting, command: str) -> dict[str, str | int]:
    """What the patches are of, in plain words and JSON; an output that was interrupted goes on if it is the same."""
    album, places = cutting.album, cutting.places
    how = {"places": "drawn"} if places.drawn else {"places": "all", "stride": places.stride}
    cut = {"step": "cut", **album.about_cut(), "count": places.points, **how}
    state = sha256(json.dumps([e.state for e in album.entries]).encode())
    what: dict[str, str | int] = {
        "command": command,
        "seed": places.seed,
        **album.attributes(),
        "steps": json.dumps([*album.steps.whole_steps(), cut, *album.steps.cut_steps(cutting.span)]),
        album.kind: json.dumps([album.about(entry) for entry in album.entries], ensure_ascii=False),
        f"{album.kind} state": state.hexdigest(),
    }
    if cutting.zca is not None:
        what["zca sha256"] = sha256(cutting.zca.mean.tobytes() + cutting.zca.matrix.tobytes("C")).hexdigest()
    return what
