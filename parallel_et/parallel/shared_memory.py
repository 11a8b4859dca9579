"""The ranks of a node, which share memory: works that all ranks have dealt among them are there once a node.

A node's ranks write into one copy of what they need, the fields, the sums, the triangle of the M-step, and read it
from there. What other nodes have done comes once for all of them: the ranks with the same number on each node, its
slot, exchange a share of it.
"""

import os
import sys
from collections.abc import Callable, Sequence
from math import prod
from mmap import mmap
from typing import Any, cast

import numpy as np

from parallel_et.parallel.mpi import MPI
from parallel_et.parallel.shards import even, owners

AT_ONCE = 1 << 14
"""Columns that are added up at a time: they stay in the cache until they are used."""
SMALL = 4096
"""Bytes that tell whether memory can be shared."""


def neighbours(comm: MPI.Intracomm) -> MPI.Intracomm:
    """The ranks of this one's node, as MPI knows them."""
    return cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED))


class Node:
    """The ``Deal`` of the ranks of a communicator, all of which make it and call it together.

    Attributes
    ----------
    rank, size : of this rank among those of its node
    nodes, slots : how many nodes there are, and ranks on each of them that exchange what other nodes need
    """

    _KEY = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, node: node.free())

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> "Node":
        """The one of a communicator, which keeps it."""
        if comm.Get_attr(cls._KEY) is None:
            comm.Set_attr(cls._KEY, cls(comm))
        return cast(Node, comm.Get_attr(cls._KEY))

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._rooms: dict[str, mmap | np.ndarray] = {}
        self._known: dict[tuple[int, ...], tuple[np.ndarray, list[int]]] = {}
        self._comm = neighbours(comm)
        reasons = [reason for reason in comm.allgather(self._cannot_share()) if reason]
        if reasons:  # all are on a node of their own
            self._comm.Free()
            self._comm = cast(MPI.Intracomm, comm.Split(comm.rank))
            if comm.rank == 0:
                text = "the ranks of a node cannot share memory, and have copies of their own"
                print(f"note: {text}: {reasons[0]}", file=sys.stderr, flush=True)
        self.rank, self.size = self._comm.rank, self._comm.size
        first = self._comm.bcast(comm.rank)
        sizes = dict(comm.allgather((first, self.size)))
        self.nodes, self.slots, self._index = len(sizes), min(sizes.values()), sorted(sizes).index(first)
        takes_part = self.rank < self.slots
        self._number = self._index * self.slots + self.rank if takes_part else None
        colour = self.rank if takes_part else MPI.UNDEFINED
        self._across = comm.Split(colour, self._index) if self.nodes > 1 else MPI.COMM_NULL

    def _cannot_share(self) -> str:
        """Why not, if so: each rank of the node must see what its first has written."""
        if self._comm.size == 1:
            return ""
        word = self._comm.bcast(os.urandom(16))
        try:
            there = self._map(SMALL)
        except OSError as error:
            return str(error)
        if self._comm.rank == 0:
            there[:16] = word
        self._comm.Barrier()
        return "" if there[:16] == word else "they see different memory"

    def _map(self, size: int) -> mmap:
        """Memory of all ranks of the node, zeros; it is gone with the last of them, however that ends.

        If one of them cannot have it, all have an OSError.
        """
        mine, error = -1, ""
        try:
            if self._comm.rank == 0:
                mine = os.memfd_create("parallel_et")
                os.ftruncate(mine, size)
        except (OSError, AttributeError) as reason:  # not every system has it
            error = str(reason)
        process, number = self._comm.bcast((os.getpid(), mine))
        try:
            if self._comm.rank > 0:
                mine = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
            found = mmap(mine, size)
        except (OSError, ValueError) as reason:
            error = error or str(reason)
        errors = [one for one in self._comm.allgather(error) if one]
        if mine >= 0:
            os.close(mine)
        if errors:
            raise OSError(errors[0])
        return found

    def free(self) -> None:
        """Give back what MPI has for it, when the communicator is given back; all ranks do so together."""
        for comm in (self._comm, self._across):
            if comm:
                comm.Free()

    def meet(self) -> None:
        """Wait for all ranks of the node: what each has written before is seen by the others then."""
        if self.size > 1:
            self._comm.Barrier()

    def room(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        from parallel_et.kernels.rows import aligned  # takes its time to load

        size = prod(shape) * np.dtype(dtype).itemsize
        if name not in self._rooms or len(self._rooms[name]) < size:
            try:
                self._rooms[name] = self._map(size) if self.size > 1 else aligned((size,), np.uint8)
            except OSError as error:  # those of other nodes may have it, and would wait for these
                raise MemoryError(f"expected {size} bytes that the ranks of a node share, found {error}") from error
        return np.frombuffer(self._rooms[name], dtype, prod(shape)).reshape(shape)

    def own(self, name: str, values: np.ndarray) -> np.ndarray:
        if self.size > 1:
            return values.copy()
        del self._rooms[name]
        return values

    def here(self, count: int, work: Callable[[int, int], None]) -> None:
        first, last = even(count, self.rank, self.size)
        if first < last:
            work(first, last)
        self.meet()

    def __call__(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        owner, mine = self._owners(tuple(sizes))
        for k in mine:
            work(k)
        if self._across:
            self._exchange(owner, np.asarray(sizes), out)
        self.meet()

    def _owners(self, sizes: tuple[int, ...]) -> tuple[np.ndarray, list[int]]:
        """Who does each of the pieces, and which of them this rank does; the same are asked for in every iteration."""
        if sizes not in self._known:
            owner = owners(sizes, self.nodes * self.slots)
            self._known[sizes] = owner, np.flatnonzero(owner == self._number).tolist()
        return self._known[sizes]

    def _exchange(self, owner: np.ndarray, sizes: np.ndarray, out: Callable[[int], np.ndarray]) -> None:
        """Give to the ranks of the same slot what this one has done, and take from them what they have."""
        pieces = np.flatnonzero(owner % self.slots == self.rank)
        node, ends = owner[pieces] // self.slots, np.cumsum(sizes[pieces])
        counts = np.bincount(node, sizes[pieces], self.nodes).astype(int)
        packed = np.empty(counts.sum())
        parts = [packed[end - sizes[k] : end] for k, end in zip(pieces, ends, strict=True)]
        for k in np.flatnonzero(node == self._index):
            parts[k][:] = out(pieces[k]).reshape(-1)
        self._across.Allgatherv(MPI.IN_PLACE, [packed, counts, np.cumsum(counts) - counts, MPI.DOUBLE])
        for k in np.flatnonzero(node != self._index):
            room = out(pieces[k])
            room[:] = parts[k].reshape(room.shape)

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        from parallel_et.kernels import fixed  # takes its time to load

        self.meet()
        first, last = even(len(values), self.rank, self.slots) if self.rank < self.slots else (0, 0)
        if self._across:
            self._sum_across(words, convert, values, first, last)
        elif self.size == 1:
            convert(words[0], 0)
        else:
            for start in range(first, last, AT_ONCE):
                stop = min(start + AT_ONCE, last)
                total = np.empty((2, stop - start), np.int64)
                fixed.add_up(words, start, total)
                convert(total, start)
        self.meet()

    def _sum_across(
        self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray, first: int, last: int
    ) -> None:
        """The same where words come from several nodes: each has a share of a slot's columns, and gives it to all."""
        from parallel_et.kernels import fixed

        total = np.empty((2, last - first), np.int64)
        fixed.add_up(words, first, total)
        shares = [even(last - first, node, self.nodes) for node in range(self.nodes)]
        counts = [stop - start for start, stop in shares]
        mine = np.empty((2, counts[self._index]), np.int64)
        for row, sums in zip(total, mine, strict=True):
            self._across.Reduce_scatter(row, sums, counts, MPI.SUM)
        convert(mine, first + shares[self._index][0])
        places = [start for start, _ in shares]
        self._across.Allgatherv(MPI.IN_PLACE, [values[first:last], counts, places, MPI.DOUBLE])
