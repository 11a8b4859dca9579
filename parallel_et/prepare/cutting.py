"""Patches prepared and written by all ranks, piece by piece: the passes over them, and what is told of them."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from math import prod

import numpy as np

from parallel_et.control.progress import Reporter
from parallel_et.control.stopping import Stopping, Wish
from parallel_et.errors import UserError
from parallel_et.io.output import Output
from parallel_et.parallel.ranks import Ranks
from parallel_et.parallel.sums import ExactSum
from parallel_et.prepare.album import Album, Entry, Places
from parallel_et.prepare.steps import Zca, zca_of

Rows = tuple[int, int]
GROUP = 1 << 23
"""Bytes of patches in double precision that are prepared at a time, in 16 to 4096 patches."""
LARGE = 1 << 27
"""Bytes of patches that are cut at a time where images are not kept: the more, the less often one is filtered."""


class StoppedError(Exception):
    """Somebody wished to stop."""

    def __init__(self, wish: Wish, done: str) -> None:
        super().__init__(f"stopped by {wish.words()}: {done}")


class GivenUpError(Exception):
    """A range is not done to its end, as this rank is to stop."""


class Sweep:
    """Work on ranges, dealt out to the ranks in contiguous runs, with progress and an end where one is wished."""

    def __init__(self, ranks: Ranks, report: Reporter, stopping: Stopping) -> None:
        self.ranks, self.report, self.stopping = ranks, report, stopping

    def between(self) -> None:
        """Give up the range that is being done if this rank is to stop: with many images it may take long."""
        if self.stopping.wish(0.0):
            raise GivenUpError

    def over(self, todo: Sequence[Rows], total: int, unit: str, does: str, work: Callable[[int, int], None]) -> None:
        """Call ``work(first, last)`` for all ranges, those missing of ``total``; all ranks call this together."""
        ranks, longest = self.ranks, 0.0
        done = total - sum(last - first for first, last in todo)
        mine = todo[len(todo) * ranks.rank // ranks.size : len(todo) * (ranks.rank + 1) // ranks.size]
        self.report.begin(total, done, unit=unit)
        for turn in range(-(-len(todo) // ranks.size)):
            begun, count = time.monotonic(), 0
            with ranks.together(), suppress(GivenUpError):
                if turn < len(mine):
                    work(*mine[turn])
                    count = mine[turn][1] - mine[turn][0]
            longest = max(longest, time.monotonic() - begun)
            if count := ranks.total(count):
                done += count
                self.report.step(done, f"{does} {done} of {total} {unit}")
            if done < total and (wish := Wish(ranks.either(self.stopping.wish(1.2 * longest)))):
                raise StoppedError(wish, f"{does} {done} of {total} {unit}")


def survey(sweep: Sweep, album: Album, files: Sequence[str], skip: bool) -> list[str]:
    """Give the album the good images of all files, each looked at by one rank; returns what is wrong with the bad."""
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
    return [line for some in wrong for line in some]


class Cutting:
    """Patches in pieces of whole groups; what is computed from a group does not depend on the number of ranks."""

    def __init__(self, sweep: Sweep, album: Album, places: Places) -> None:
        self.sweep, self.album, self.places = sweep, album, places
        self.dims = prod(album.size)
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

        def work(first: int, last: int) -> None:
            cut = self._cut(first, last)
            same = prod(shape) == self.dims  # then a patch takes the place of what it is made from
            patches = cut.reshape(-1, *shape) if same else np.empty((len(cut), *shape), np.float32)
            for part in self._groups(cut):
                patches[part] = self.album.prepare(cut[part], self.zca, self.span)
            try:
                output.write(first, {unit: patches})
            except OSError as error:
                raise UserError(f"{output.path}: expected room to write, found {error.strerror}") from None

        todo = self._pieces(output.written)
        self.sweep.over(todo, self.places.points, unit, "written", work)

    def _pieces(self, written: Sequence[Rows] = ()) -> list[Rows]:
        """The pieces, without the groups that are written."""
        pieces: list[Rows] = []
        for first in range(0, self.places.points, self.group):
            last = min(first + self.group, self.places.points)
            if any(a <= first and last <= b for a, b in written):
                continue
            if pieces and pieces[-1][1] == first and last - pieces[-1][0] <= self.piece:
                pieces[-1] = pieces[-1][0], last
            else:
                pieces.append((first, last))
        return pieces

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

        self.sweep.over(self._pieces(), points, self.album.unit, "covariance of", work)
        with ranks.together():
            sums.check()
        found = sums.on_root(ranks)
        zca = Zca(np.empty(self.dims), np.empty((self.dims, self.dims)))
        if ranks.is_root:
            zca = zca_of(found["first"], found["second"], points, epsilon)
        shared = ranks.share({"mean": zca.mean, "matrix": zca.matrix})
        return Zca(shared["mean"], np.ascontiguousarray(shared["matrix"]))  # products round by the layout

    def _span(self, option: str) -> tuple[float, float]:
        ranks, low, high = self.sweep.ranks, np.inf, -np.inf

        def work(first: int, last: int) -> None:
            nonlocal low, high
            patches = self._cut(first, last)
            for part in self._groups(patches):
                values = self.album.prepare(patches[part], self.zca, None)
                low, high = min(low, float(values.min())), max(high, float(values.max()))

        self.sweep.over(self._pieces(), self.places.points, self.album.unit, "range of", work)
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
