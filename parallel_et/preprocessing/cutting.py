"""Preparation and writing of patches by all ranks: the passes over the images, and the metadata of the output."""

import json
import shlex
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.parallel.exact_sum import ExactSum
from parallel_et.preprocessing.filters import Zca, compute_zca
from parallel_et.preprocessing.image_collection import ImageCollection, ImageInfo, PatchPlaces
from parallel_et.storage.output import Output, Table
from parallel_et.storage.row_pass import RowPass, count_rows, split_rows

NEUTRAL_OPTIONS = ("inputs", "fresh", "quiet", "max_time")
"""Options that do not change the patches, or that are written elsewhere."""
FLOAT32_MAX = float(np.finfo(np.float32).max)
"""Largest number of single precision, the precision of the output."""
GROUP_BYTES = 1 << 23
"""Bytes of patches in double precision that are prepared at once. A group has 16 to 4096 patches."""
MEANS_TABLE = "means"
"""Name of the table with the means that were subtracted from the patches."""
PIECE_BYTES = 1 << 27
"""Bytes of patches that are cut at once if images are not kept. A larger value filters each image less often."""


def check_options(options: Any, checks: Sequence[tuple[str, bool, str]]) -> None:
    """Raise UserError for the first invalid option.

    Parameters
    ----------
    checks : name of an option, True if the option is valid, and the expected value in words
    """
    for option, good, expected in checks:
        if not good:
            found = vars(options)[option]
            words = " ".join(map(str, found)) if isinstance(found, (list, tuple)) else found
            raise UserError(f"--{option.replace('_', '-')}: expected {expected}, found {words}")


def format_command(name: str, options: Any) -> str:
    """Return the command line that cuts the same patches, without the neutral options."""
    words = ["python", "-m", "parallel_et", name, *options.inputs]
    for option, value in vars(options).items():
        if option not in NEUTRAL_OPTIONS and value is not None and value is not False:
            values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
            words += [
                f"--{option.replace('_', '-')}",
                *(str(v).removesuffix(".0") if isinstance(v, float) else str(v) for v in values),
            ]
    return shlex.join(words)


def inspect_files(
    row_pass: RowPass, collection: ImageCollection, files: Sequence[str], skip: bool, inputs: Sequence[str]
) -> None:
    """Inspect all files, one rank per file, and set the images of the collection; collective.

    Parameters
    ----------
    skip : report and skip bad files instead of raising an error
    """
    entries: list[ImageInfo] = []
    bad: list[str] = []

    def look(first: int, last: int) -> None:
        try:
            entries.extend(collection.inspect(files[first]))
        except UserError as error:
            if not skip:
                raise
            bad.append(str(error))

    row_pass.for_each([(i, i + 1) for i in range(len(files))], len(files), "files", "looked at", look)
    ranks = row_pass.ranks
    every, wrong = ranks.broadcast_object(ranks.gather(entries)), ranks.broadcast_object(ranks.gather(bad))
    collection.set_entries([entry for some in every for entry in some])
    lines = [line for some in wrong for line in some]
    for line in lines:
        row_pass.reporter.log(f"skipped {line}")
    if not collection.entries:
        raise UserError(f"{' '.join(inputs)}: expected {collection.kind}, found only bad files: {len(lines)}")


def write_patches(row_pass: RowPass, collection: ImageCollection, places: PatchPlaces, command: str, words: str) -> str:
    """Cut, prepare and write all patches; collective. Return the location of their table in the file.

    Parameters
    ----------
    command : the command line, written to the file
    words : size of a patch in words, for the log
    """
    ranks, report, unit = row_pass.ranks, row_pass.reporter, collection.unit
    report.log(
        f"{places.points} {unit} {words} from {len(collection.entries)} {collection.kind} with {places.total} "
        f"positions, on {ranks.size} rank{'s' if ranks.size > 1 else ''}"
        + (
            ""
            if collection.all_cached
            else f"; too large to be kept: the {collection.kind} are filtered again for each piece"
        )
    )
    writer = PatchWriter(row_pass, collection, places)
    writer.measure_patches()
    what = build_metadata(writer, command)
    tables = {unit: Table((places.points, *collection.output_shape), np.float32, what)}
    if collection.mean_free:
        tables[MEANS_TABLE] = Table((places.points,), np.float64)
    arrays = collection.truth()
    if writer.zca is not None:
        arrays |= {f"zca/{name}": values for name, values in vars(writer.zca).items()}
    with row_pass.open(tables, what, arrays) as output:
        if there := count_rows(output.written):
            report.log(f"{there} {unit} already exist")
        writer.write(output)
    return f":/{unit}"


class PatchWriter:
    """Cuts and writes patches in pieces of whole groups.

    Each group is computed separately, so it is bit-identical on any number of ranks.
    """

    def __init__(self, row_pass: RowPass, collection: ImageCollection, places: PatchPlaces) -> None:
        self.row_pass, self.collection, self.places = row_pass, collection, places
        self.dims = prod(collection.patch_shape)
        self.group = 1 << min(max((GROUP_BYTES // (8 * self.dims)).bit_length() - 1, 4), 12)
        most = -(-places.points // (self.group * row_pass.ranks.size))
        groups = 1 if collection.all_cached else max(1, min(PIECE_BYTES // (4 * self.dims * self.group), most))
        self.piece = groups * self.group
        self.zca: Zca | None = None
        self.span: tuple[float, float] | None = None

    def measure_patches(self) -> None:
        """Compute the whitening matrix and the range of all patches, if a step needs them; collective."""
        if self.collection.zca_epsilon is not None:
            self.zca = self._zca(self.collection.zca_epsilon)
        if self.collection.option_that_needs_range is not None:
            self.span = self._span(self.collection.option_that_needs_range)

    def write(self, output: Output) -> None:
        """Write all patches that are not yet written; collective."""
        shape, unit = self.collection.output_shape, self.collection.unit

        def make(first: int, last: int) -> dict[str, np.ndarray]:
            found = self._cut(first, last)
            same = prod(shape) == self.dims  # the prepared patch overwrites the cut patch
            patches = found.reshape(-1, *shape) if same else np.empty((len(found), *shape), np.float32)
            means = {MEANS_TABLE: np.empty(len(found))} if self.collection.mean_free else {}
            for part in self._groups(found):
                for values in means.values():
                    values[part] = found[part].reshape(-1, self.dims).mean(1, dtype=np.float64)
                patches[part] = self.collection.apply_patch_steps(found[part], self.zca, self.span)
            return {unit: patches, **means}

        self.row_pass.fill(output, (self.group, self.piece), make, unit)

    def _cut(self, first: int, last: int) -> np.ndarray:
        return self.collection.cut(*self.places.locate(first, last))

    def _groups(self, patches: np.ndarray) -> Iterator[slice]:
        for start in range(0, len(patches), self.group):
            yield slice(start, min(start + self.group, len(patches)))

    def _zca(self, epsilon: float) -> Zca:
        ranks, points = self.row_pass.ranks, self.places.points
        sums = ExactSum({"first": (self.dims,), "second": (self.dims, self.dims)})
        largest = max(entry.largest for entry in self.collection.entries) * (
            2 if self.collection.steps.mean_free else 1
        )
        sums.reset({"first": largest, "second": largest**2}, points, self.group)

        def work(first: int, last: int) -> None:
            patches = self._cut(first, last)
            for part in self._groups(patches):
                X = self.collection.apply_patch_steps(patches[part], None, None).reshape(-1, self.dims)
                sums.add("first", X.sum(0))
                sums.add("second", X.T @ X)

        self.row_pass.for_each(
            split_rows(points, self.group, self.piece), points, self.collection.unit, "covariance of", work
        )
        with ranks.synchronise_errors():
            sums.check()
        found = sums.on_root(ranks)
        zca = Zca(np.empty(self.dims), np.empty((self.dims, self.dims)))
        if ranks.is_root:
            zca = compute_zca(found["first"], found["second"], points, epsilon)
        shared = ranks.broadcast({"mean": zca.mean, "matrix": zca.matrix})
        return Zca(shared["mean"], np.ascontiguousarray(shared["matrix"]))  # products round by the layout

    def _span(self, option: str) -> tuple[float, float]:
        ranks, points, low, high = self.row_pass.ranks, self.places.points, np.inf, -np.inf

        def work(first: int, last: int) -> None:
            nonlocal low, high
            patches = self._cut(first, last)
            for part in self._groups(patches):
                values = self.collection.apply_patch_steps(patches[part], self.zca, None)
                low, high = min(low, float(values.min())), max(high, float(values.max()))

        self.row_pass.for_each(
            split_rows(points, self.group, self.piece), points, self.collection.unit, "range of", work
        )
        low, high = -ranks.max(-low), ranks.max(high)
        if low == high:
            raise UserError(f"{option}: expected {self.collection.unit} of different values, found {low:g} everywhere")
        return low, high


def build_metadata(writer: PatchWriter, command: str) -> dict[str, str | int]:
    """Return the attributes of the output file. An interrupted output is resumed only if they are equal."""
    collection, places = writer.collection, writer.places
    how = {"places": "drawn"} if places.drawn else {"places": "all", "stride": places.stride}
    cut = {"step": "cut", **collection.cut_metadata(), "count": places.points, **how}
    state = sha256(json.dumps([e.file_state for e in collection.entries]).encode())
    what: dict[str, str | int] = {
        "command": command,
        "seed": places.seed,
        **collection.attributes(),
        "steps": json.dumps(
            [*collection.steps.describe_image_steps(), cut, *collection.steps.describe_patch_steps(writer.span)]
        ),
        collection.kind: json.dumps(
            [collection.image_metadata(entry) for entry in collection.entries], ensure_ascii=False
        ),
        f"{collection.kind} state": state.hexdigest(),
    }
    if writer.zca is not None:
        what["zca sha256"] = sha256(writer.zca.mean.tobytes() + writer.zca.matrix.tobytes("C")).hexdigest()
    return what
