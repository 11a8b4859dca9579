"""Checks that all numbers of an HDF5 dataset are stored, and the files that store them.

HDF5 returns fill values for rows that were never written, and for virtual rows whose source is missing or too small.
It returns zeros for missing bytes of a raw file.
A virtual dataset that leads to itself crashes the process.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import h5py
from h5py import h5s

from parallel_et.errors import UserError

Slab = tuple[list[int], list[int], list[int], list[int]]
"""Start, stride, count and block of a regular selection, on each axis."""


def files_of(dataset: h5py.Dataset, first: int = 0, last: int | None = None, above: Sequence[Any] = ()) -> set[str]:
    """Return the files that store rows [first, last) of a dataset, by default all rows.

    Rows that no file stores raise a UserError. ``above`` are the virtual datasets that lead to this dataset.
    """
    path = dataset.file.filename
    where, status = f"{path}: {dataset.name}", os.stat(path)
    key = status.st_dev, status.st_ino, h5py.h5o.get_info(dataset.id).addr
    if key in above:
        raise UserError(f"{where}: expected a virtual dataset of other datasets, found that it leads to itself")
    if not dataset.size:
        return {path}
    last = last if last is not None or not dataset.shape else dataset.shape[0]
    if dataset.is_virtual:
        return {path} | _files_of_sources(dataset, where, first, last or 0, (*above, key))
    if dataset.external:
        return {path, *_external_files(dataset, where)}
    if not dataset.id.get_storage_size():
        raise UserError(f"{where}: expected numbers, found that nothing was ever written")
    if dataset.chunks is not None:
        _check_chunks(dataset, where, first, last or 0)
    return {path}


def inspect_dataset(path: str, name: str) -> list[Any]:
    """Use a dataset as a run does, to find out whether HDF5 crashes. Called in another process.

    Errors that HDF5 reports are ignored here; they return when the caller reads the dataset.
    Only the first and last row are read. A chunk without bytes would crash HDF5, and is refused.
    """
    empty: list[int] = []
    with suppress(Exception), h5py.File(path, "r") as file:
        file.visititems(lambda key, item: None)
        dataset = file[name]
        if dataset.chunks is not None:
            dataset.id.chunk_iter(lambda chunk: None if chunk.size else empty.append(chunk.chunk_offset[0]))
        for first in (0, dataset.shape[0] - 1):
            files_of(dataset, first, first + 1)
            dataset[first]
    if empty:
        raise UserError(f"{path}: {name}: row {empty[0]}: expected a chunk of numbers, found one of no bytes")
    return []


def _check_chunks(dataset: h5py.Dataset, where: str, first: int, last: int) -> None:
    """Refuse rows [first, last) if chunks were never written, or are too small."""
    chunks_per_row = prod(-(-size // chunk) for size, chunk in zip(dataset.shape[1:], dataset.chunks[1:], strict=True))
    chunk_rows, count = dataset.chunks[0], dataset.id.get_num_chunks()
    size, stored = count * prod(dataset.chunks) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if stored != size and not dataset.id.get_create_plist().get_nfilters():  # HDF5 would invent the rest
        raise UserError(f"{where}: expected {size} bytes in {count} chunks that are not compressed, found {stored}")
    if count >= chunks_per_row * -(-dataset.shape[0] // chunk_rows):
        return
    written: list[int] = []

    def collect(chunk: Any) -> None:
        if first - chunk_rows < chunk.chunk_offset[0] < last:
            written.append(chunk.chunk_offset[0])

    dataset.id.chunk_iter(collect)
    expected = chunks_per_row * (-(-last // chunk_rows) - first // chunk_rows) if last > first else 0
    if len(written) < expected:
        rows = f"rows {first} to {last - 1}"
        raise UserError(f"{where}: expected {expected} chunks for {rows}, found that {len(written)} were written")


def _external_files(dataset: h5py.Dataset, where: str) -> Iterator[str]:
    """Yield the files of raw bytes that store a dataset."""
    left, folder = dataset.nbytes, os.path.dirname(dataset.file.filename)
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX") or _text(dataset.id.get_access_plist().get_efile_prefix())
    for name, offset, size in dataset.external:
        path = os.path.join(prefix.replace("${ORIGIN}", folder), name)
        needed = min(left, size)  # an unlimited size is the largest number
        found = os.path.getsize(path) - offset if os.path.isfile(path) else 0
        if found < needed:
            raise UserError(f"{where}: expected {needed} bytes at {offset} of {path}, found {max(0, found)}")
        left -= needed
        yield path
    if left:
        raise UserError(f"{where}: expected {dataset.nbytes} bytes in other files, found {left} missing")


def _files_of_sources(dataset: h5py.Dataset, where: str, first: int, last: int, above: Sequence[Any]) -> set[str]:
    """Return the files of the sources of rows [first, last). The sources must exist and cover all rows."""
    files, shape = set(), dataset.shape
    covered: list[Slab] = []
    for source in dataset.virtual_sources():
        _check_numbers(source, shape, dataset.file.filename, where)
        for slabs, file_name, name in _pieces(source, shape, first, last):
            selection = _select(shape, slabs)
            needed, (low, high) = selection.get_select_npoints(), selection.get_select_bounds()
            with _open_source(dataset, file_name, f"{where}: expected rows {low[0]} to {high[0]}") as file:
                found = file.get(name)
                if not isinstance(found, h5py.Dataset):
                    raise UserError(f"{where}: expected a source {name} in {file.filename}, found none")
                stored = _select(found.shape, _slabs(source.src_space, found.shape))
                if missing := max(0, needed - stored.get_select_npoints()):
                    raise UserError(f"{where}: expected {needed} values in {file.filename}, found {missing} missing")
                low, high = stored.get_select_bounds()
                files |= files_of(found, int(low[0]), int(high[0]) + 1, above)
            covered += slabs
    size = (last - first) * prod(shape[1:])
    if missing := size - _select(shape, covered, first, last).get_select_npoints():
        rows = f"rows {first} to {last - 1}"
        raise UserError(f"{where}: {rows}: expected sources of all values, found {missing} values without a source")
    return files


def _pieces(source: Any, shape: Sequence[int], first: int, last: int) -> Iterator[tuple[list[Slab], str, str]]:
    """Yield the parts of a source in rows [first, last): slabs, file and dataset. %b in a name is a block's number."""
    slabs = _slabs(source.vspace, shape)
    parts = [(0, slabs)]
    if "%b" in source.file_name or "%b" in source.dset_name:
        ((start, stride, count, block),) = slabs
        axis = next((k for k, number in enumerate(count) if number > 1), 0)
        starts = ([v + n * stride[axis] * (k == axis) for k, v in enumerate(start)] for n in range(count[axis]))
        parts = [(n, [(corner, stride, [1] * len(shape), block)]) for n, corner in enumerate(starts)]
    for number, some in parts:
        if _select(shape, some, first, last).get_select_npoints():
            yield some, _numbered(source.file_name, number), _numbered(source.dset_name, number)


def _check_numbers(source: Any, shape: Sequence[int], own: str, where: str) -> None:
    """Refuse numbered files if one is missing before an existing one: HDF5 would end the dataset there."""
    if "%b" not in source.file_name:
        return
    folder, name = os.path.split(os.path.join(os.path.dirname(own), source.file_name))
    pattern = "([0-9]+)".join(re.escape(_numbered(part)) for part in name.split("%b"))
    numbers = [int(found[1]) for found in (re.fullmatch(pattern, file) for file in os.listdir(folder or ".")) if found]
    count = max(max(slab[2]) for slab in _slabs(source.vspace, shape))
    if numbers and max(numbers) >= count:
        missing = _numbered(source.file_name, count)
        raise UserError(f"{where}: expected {missing} before number {max(numbers)}, found that it cannot be read")


def _numbered(name: str, number: int = 0) -> str:
    return "%".join(part.replace("%b", str(number)) for part in name.split("%%"))


def _slabs(space: Any, shape: Sequence[int]) -> list[Slab]:
    """Return the selection of a table of that shape as slabs. An unlimited selection ends with the table."""
    ones = [1] * len(shape)
    if space.get_select_type() == h5s.SEL_ALL:
        return [([0] * len(shape), ones, ones, list(shape))]
    if not space.is_regular_hyperslab():
        boxes = space.get_select_hyper_blocklist().tolist()
        return [(low, ones, ones, [b - a + 1 for a, b in zip(low, high, strict=True)]) for low, high in boxes]
    start, stride, count, block = ([int(v) for v in values] for values in space.get_regular_hyperslab())
    for axis, size in enumerate(shape):
        left = max(0, size - start[axis])
        if block[axis] == h5s.UNLIMITED:
            block[axis] = left
        if count[axis] == h5s.UNLIMITED:
            count[axis] = -(-left // stride[axis])
    return [(start, stride, count, block)]


def _select(shape: Sequence[int], slabs: Sequence[Slab], first: int = 0, last: int | None = None) -> Any:
    """Return the selection of slabs inside a table of that shape, in its rows [first, last)."""
    space = h5s.create_simple(tuple(shape))
    space.select_none()
    for start, stride, count, block in slabs:
        if min(*count, *block) > 0:
            space.select_hyperslab(tuple(start), tuple(count), tuple(stride), tuple(block), op=h5s.SELECT_OR)
    box = ((shape[0] if last is None else last) - first, *shape[1:])
    if space.get_select_npoints() and min(box) > 0:
        space.select_hyperslab((first, *(0 for _ in shape[1:])), (1,) * len(shape), None, box, op=h5s.SELECT_AND)
    return space


def _open_source(dataset: h5py.Dataset, name: str, expected: str) -> h5py.File:
    """Open the file of a source of a virtual dataset, found by the search rules of HDF5."""
    own = dataset.file.filename
    if name == ".":
        return h5py.File(own, "r")
    folder = os.path.dirname(own)
    given = _text(dataset.id.get_access_plist().get_virtual_prefix())
    prefixes = [*os.environ.get("HDF5_VDS_PREFIX", "").split(":"), given]
    folders = [prefix.replace("${ORIGIN}", folder) for prefix in prefixes if prefix]
    folders += [folder, "", os.path.dirname(os.path.realpath(own))]
    names = [name, os.path.basename(name)] if os.path.isabs(name) else [name]
    for path in (os.path.join(folder, name) for name in names for folder in folders):
        if os.path.isfile(path) and h5py.is_hdf5(path):
            return h5py.File(path, "r")
    raise UserError(f"{expected} in {name}, found {'no HDF5 file' if os.path.exists(name) else 'nothing'} there")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
