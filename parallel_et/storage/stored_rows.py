"""Whether the numbers of an HDF5 dataset are all there, and in which files.

HDF5 itself gives the fill value for what is nowhere: rows that were never written, the rows of a virtual dataset whose
source is missing or too small, and zeros for what a file of raw bytes lacks. It follows a virtual dataset that leads to
itself until the process ends.
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
"""Of a regular selection: start, stride, count and block on each axis."""


def files_of(dataset: h5py.Dataset, first: int = 0, last: int | None = None, above: Sequence[Any] = ()) -> set[str]:
    """The files in which rows [first, last) of a dataset lie, by default all; UserError if some rows are nowhere.

    ``above`` are the datasets that have led here.
    """
    path = dataset.file.filename
    place, here = f"{path}: {dataset.name}", os.stat(path)
    key = here.st_dev, here.st_ino, h5py.h5o.get_info(dataset.id).addr
    if key in above:
        raise UserError(f"{place}: expected a virtual dataset of other datasets, found that it leads to itself")
    if not dataset.size:
        return {path}
    last = last if last is not None or not dataset.shape else dataset.shape[0]
    if dataset.is_virtual:
        return {path} | _virtual(dataset, place, first, last or 0, (*above, key))
    if dataset.external:
        return {path, *_external(dataset, place)}
    if not dataset.id.get_storage_size():
        raise UserError(f"{place}: expected numbers, found that nothing was ever written")
    if dataset.chunks is not None:
        _check_chunks(dataset, place, first, last or 0)
    return {path}


def look(path: str, name: str) -> list[Any]:
    """Do with a dataset all that is done with the data of a run, to see whether HDF5 survives it.

    What is wrong with it in a way that HDF5 can tell is told when it is done again. Of chunks only the first and last
    are read here; one without bytes would end the process that reads it.
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


def _check_chunks(dataset: h5py.Dataset, place: str, first: int, last: int) -> None:
    """Refuse rows [first, last) of which some chunks were never written, or are not as large as they must be."""
    wide = prod(-(-size // chunk) for size, chunk in zip(dataset.shape[1:], dataset.chunks[1:], strict=True))
    high, count = dataset.chunks[0], dataset.id.get_num_chunks()
    size, stored = count * prod(dataset.chunks) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if stored != size and not dataset.id.get_create_plist().get_nfilters():  # HDF5 would make up the rest
        raise UserError(f"{place}: expected {size} bytes in {count} chunks that are not compressed, found {stored}")
    if count >= wide * -(-dataset.shape[0] // high):
        return
    there: list[int] = []

    def note(chunk: Any) -> None:
        if first - high < chunk.chunk_offset[0] < last:
            there.append(chunk.chunk_offset[0])

    dataset.id.chunk_iter(note)
    expected = wide * (-(-last // high) - first // high) if last > first else 0
    if len(there) < expected:
        raise UserError(
            f"{place}: expected {expected} chunks for rows {first} to {last - 1}, found that {len(there)} were written"
        )


def _external(dataset: h5py.Dataset, place: str) -> Iterator[str]:
    """The files of raw bytes that a dataset is kept in."""
    left, folder = dataset.nbytes, os.path.dirname(dataset.file.filename)
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX") or _text(dataset.id.get_access_plist().get_efile_prefix())
    for name, offset, size in dataset.external:
        path = os.path.join(prefix.replace("${ORIGIN}", folder), name)
        wanted = min(left, size)  # without end it is the largest number
        found = os.path.getsize(path) - offset if os.path.isfile(path) else 0
        if found < wanted:
            raise UserError(f"{place}: expected {wanted} bytes at {offset} of {path}, found {max(0, found)}")
        left -= wanted
        yield path
    if left:
        raise UserError(f"{place}: expected {dataset.nbytes} bytes in other files, found room for {left} less")


def _virtual(dataset: h5py.Dataset, place: str, first: int, last: int, above: Sequence[Any]) -> set[str]:
    """The files of the sources of rows [first, last), all of which must be there and cover all of the rows."""
    files, shape = set(), dataset.shape
    covered: list[Slab] = []
    for source in dataset.virtual_sources():
        _check_numbers(source, shape, dataset.file.filename, place)
        for slabs, file_name, name in _pieces(source, shape, first, last):
            given = _select(shape, slabs)
            needed, (low, high) = given.get_select_npoints(), given.get_select_bounds()
            with _opened(dataset, file_name, f"{place}: expected rows {low[0]} to {high[0]}") as file:
                found = file.get(name)
                if not isinstance(found, h5py.Dataset):
                    raise UserError(f"{place}: expected a source {name} in {file.filename}, found none")
                part = _select(found.shape, _slabs(source.src_space, found.shape))
                if lacking := max(0, needed - part.get_select_npoints()):
                    raise UserError(f"{place}: expected {needed} values in {file.filename}, found {lacking} missing")
                low, high = part.get_select_bounds()
                files |= files_of(found, int(low[0]), int(high[0]) + 1, above)
            covered += slabs
    size = (last - first) * prod(shape[1:])
    if lacking := size - _select(shape, covered, first, last).get_select_npoints():
        line = f"expected sources of all, found {lacking} values without"
        raise UserError(f"{place}: rows {first} to {last - 1}: {line}")
    return files


def _pieces(source: Any, shape: Sequence[int], first: int, last: int) -> Iterator[tuple[list[Slab], str, str]]:
    """What a source gives to rows [first, last): where, and from which file and dataset; %b is a block's number."""
    slabs = _slabs(source.vspace, shape)
    parts = [(0, slabs)]
    if "%b" in source.file_name or "%b" in source.dset_name:
        ((start, stride, count, block),) = slabs
        axis = next((k for k, number in enumerate(count) if number > 1), 0)
        places = ([v + n * stride[axis] * (k == axis) for k, v in enumerate(start)] for n in range(count[axis]))
        parts = [(n, [(place, stride, [1] * len(shape), block)]) for n, place in enumerate(places)]
    for number, some in parts:
        if _select(shape, some, first, last).get_select_npoints():
            yield some, _plain(source.file_name, number), _plain(source.dset_name, number)


def _check_numbers(source: Any, shape: Sequence[int], own: str, place: str) -> None:
    """Refuse files by number of which one is missing while later ones are there: HDF5 takes it for the end of all."""
    if "%b" not in source.file_name:
        return
    folder, name = os.path.split(os.path.join(os.path.dirname(own), source.file_name))
    pattern = "([0-9]+)".join(re.escape(_plain(part)) for part in name.split("%b"))
    numbers = [int(found[1]) for found in (re.fullmatch(pattern, file) for file in os.listdir(folder or ".")) if found]
    count = max(max(slab[2]) for slab in _slabs(source.vspace, shape))
    if numbers and max(numbers) >= count:
        missing = _plain(source.file_name, count)
        raise UserError(f"{place}: expected {missing} before number {max(numbers)}, found that it cannot be read")


def _plain(name: str, number: int = 0) -> str:
    return "%".join(part.replace("%b", str(number)) for part in name.split("%%"))


def _slabs(space: Any, shape: Sequence[int]) -> list[Slab]:
    """What is selected of a table of that shape; a selection without end ends with the table."""
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
    """The part of slabs that is inside of a table of that shape, in its rows [first, last)."""
    space = h5s.create_simple(tuple(shape))
    space.select_none()
    for start, stride, count, block in slabs:
        if min(*count, *block) > 0:
            space.select_hyperslab(tuple(start), tuple(count), tuple(stride), tuple(block), op=h5s.SELECT_OR)
    box = ((shape[0] if last is None else last) - first, *shape[1:])
    if space.get_select_npoints() and min(box) > 0:
        space.select_hyperslab((first, *(0 for _ in shape[1:])), (1,) * len(shape), None, box, op=h5s.SELECT_AND)
    return space


def _opened(dataset: h5py.Dataset, name: str, place: str) -> h5py.File:
    """The file of a source of a virtual dataset, looked for where HDF5 does."""
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
    raise UserError(f"{place} in {name}, found {'no HDF5 file' if os.path.exists(name) else 'nothing'} there")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
