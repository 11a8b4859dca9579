"""Work sharing of several ranks, with arrays in memory that the ranks of a node share.

A node has one copy of each shared array, such as the fields, the sums and the triangle of the M-step. Results of other
nodes arrive once per node. The ranks with the same index on their nodes, a *slot*, exchange a part of them.
"""

import os
import sys
from collections.abc import Callable, Sequence
from math import prod
from mmap import mmap
from typing import Any, cast

import numpy as np

from parallel_et.parallel.mpi import MPI
from parallel_et.parallel.shards import even_range, owners

CACHED_COLUMNS = 1 << 14
"""Columns of integers that are summed at a time, few enough to stay in the cache until they are converted."""
TEST_BYTES = 4096
"""Memory that tests whether the ranks of a node can share memory."""


def node_communicator(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the ranks of this node."""
    return cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED))


class NodeSharing:
    """The ``WorkSharing`` of all ranks of a communicator.

    Attributes
    ----------
    rank, size : index of this rank among the ranks of its node, and their number
    nodes : number of nodes
    slots : ranks of each node that exchange results with other nodes
    """

    _KEY = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, node: node.free())

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> "NodeSharing":
        """Return the instance that is stored with a communicator."""
        if comm.Get_attr(cls._KEY) is None:
            comm.Set_attr(cls._KEY, cls(comm))
        return cast(NodeSharing, comm.Get_attr(cls._KEY))

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._memory: dict[str, mmap | np.ndarray] = {}
        self._owned_pieces: dict[tuple[int, ...], tuple[np.ndarray, list[int]]] = {}
        self._comm = node_communicator(comm)
        reasons = [reason for reason in comm.allgather(self._cannot_share()) if reason]
        if reasons:  # treat every rank as a separate node
            self._comm.Free()
            self._comm = cast(MPI.Intracomm, comm.Split(comm.rank))
            if comm.rank == 0:
                text = "the ranks of a node cannot share memory, so every rank has its own copies"
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
        """Return why the ranks of this node cannot share memory, or ""."""
        if self._comm.size == 1:
            return ""
        word = self._comm.bcast(os.urandom(16))
        try:
            memory = self._map(TEST_BYTES)
        except OSError as error:
            return str(error)
        if self._comm.rank == 0:
            memory[:16] = word
        self._comm.Barrier()
        return "" if memory[:16] == word else "they see different memory"

    def _map(self, size: int) -> mmap:
        """Return memory of zeros that the ranks of the node share. The system frees it when the last rank has ended.

        If one rank cannot map the memory, all ranks raise an OSError.
        """
        descriptor, error = -1, ""
        try:
            if self._comm.rank == 0:
                descriptor = os.memfd_create("parallel_et")
                os.ftruncate(descriptor, size)
        except (OSError, AttributeError) as reason:  # some systems lack memfd_create
            error = str(reason)
        process, number = self._comm.bcast((os.getpid(), descriptor))
        try:
            if self._comm.rank > 0:
                descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
            memory = mmap(descriptor, size)
        except (OSError, ValueError) as reason:
            error = error or str(reason)
        errors = [one for one in self._comm.allgather(error) if one]
        if descriptor >= 0:
            os.close(descriptor)
        if errors:
            raise OSError(errors[0])
        return memory

    def free(self) -> None:
        """Free the communicators. All ranks call it together, when the communicator of the instance is freed."""
        for comm in (self._comm, self._across):
            if comm:
                comm.Free()

    def barrier(self) -> None:
        """Wait for all ranks of the node, which then see all earlier writes to shared arrays."""
        if self.size > 1:
            self._comm.Barrier()

    def shared_array(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        from parallel_et.kernels.rows import aligned  # slow to load

        size = prod(shape) * np.dtype(dtype).itemsize
        if name not in self._memory or len(self._memory[name]) < size:
            try:
                self._memory[name] = self._map(size) if self.size > 1 else aligned((size,), np.uint8)
            except OSError as error:  # not an OSError: other nodes may have no error, and would wait for this one
                raise MemoryError(f"expected {size} bytes that the ranks of a node share, found {error}") from error
        return np.frombuffer(self._memory[name], dtype, prod(shape)).reshape(shape)

    def private_copy(self, name: str, values: np.ndarray) -> np.ndarray:
        if self.size > 1:
            return values.copy()
        del self._memory[name]
        return values

    def map_range(self, count: int, work: Callable[[int, int], None]) -> None:
        first, last = even_range(count, self.rank, self.size)
        if first < last:
            work(first, last)
        self.barrier()

    def map_pieces(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        owner, own_pieces = self._owners(tuple(sizes))
        for k in own_pieces:
            work(k)
        if self._across:
            self._exchange(owner, np.asarray(sizes), out)
        self.barrier()

    def _owners(self, sizes: tuple[int, ...]) -> tuple[np.ndarray, list[int]]:
        """Return the owner of each piece and the pieces of this rank; cached, as iterations repeat the same sizes."""
        if sizes not in self._owned_pieces:
            owner = owners(sizes, self.nodes * self.slots)
            self._owned_pieces[sizes] = owner, np.flatnonzero(owner == self._number).tolist()
        return self._owned_pieces[sizes]

    def _exchange(self, owner: np.ndarray, sizes: np.ndarray, out: Callable[[int], np.ndarray]) -> None:
        """Exchange the finished pieces with the ranks of the same slot."""
        pieces = np.flatnonzero(owner % self.slots == self.rank)
        node, ends = owner[pieces] // self.slots, np.cumsum(sizes[pieces])
        counts = np.bincount(node, sizes[pieces], self.nodes).astype(int)
        packed = np.empty(counts.sum())
        parts = [packed[end - sizes[k] : end] for k, end in zip(pieces, ends, strict=True)]
        for k in np.flatnonzero(node == self._index):
            parts[k][:] = out(pieces[k]).reshape(-1)
        self._across.Allgatherv(MPI.IN_PLACE, [packed, counts, np.cumsum(counts) - counts, MPI.DOUBLE])
        for k in np.flatnonzero(node != self._index):
            result = out(pieces[k])
            result[:] = parts[k].reshape(result.shape)

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        from parallel_et.kernels import fixed  # slow to load

        self.barrier()
        first, last = even_range(len(values), self.rank, self.slots) if self.rank < self.slots else (0, 0)
        if self._across:
            self._sum_across(words, convert, values, first, last)
        elif self.size == 1:
            convert(words[0], 0)
        else:
            for start in range(first, last, CACHED_COLUMNS):
                stop = min(start + CACHED_COLUMNS, last)
                total = np.empty((2, stop - start), np.int64)
                fixed.sum_words(words, start, total)
                convert(total, start)
        self.barrier()

    def _sum_across(
        self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray, first: int, last: int
    ) -> None:
        """Sum the columns [first, last) of this slot over all nodes. Each node converts a part of them for all."""
        from parallel_et.kernels import fixed

        total = np.empty((2, last - first), np.int64)
        fixed.sum_words(words, first, total)
        ranges = [even_range(last - first, node, self.nodes) for node in range(self.nodes)]
        counts = [stop - start for start, stop in ranges]
        node_sums = np.empty((2, counts[self._index]), np.int64)
        for row, sums in zip(total, node_sums, strict=True):
            self._across.Reduce_scatter(row, sums, counts, MPI.SUM)
        offsets = [start for start, _ in ranges]
        convert(node_sums, first + offsets[self._index])
        self._across.Allgatherv(MPI.IN_PLACE, [values[first:last], counts, offsets, MPI.DOUBLE])
