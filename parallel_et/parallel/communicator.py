"""The ranks of a run: a communicator with the collective operations that all other code uses."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import NoReturn, TypeVar, cast

import numpy as np
from threadpoolctl import threadpool_limits

from parallel_et.control.process import keep_freed_memory, print_now
from parallel_et.control.signals import EXIT_STOPPED, STOPPED_BEFORE_START, received_signal
from parallel_et.errors import PATH_ERRORS, UserError, check_name
from parallel_et.parallel.mpi import MPI
from parallel_et.parallel.rank_watch import OUTPUT_SECONDS, RankWatch
from parallel_et.parallel.shared_memory import NodeSharing
from parallel_et.parallel.watched_start import (
    RANK_VARIABLES,
    SIZE_VARIABLES,
    START_LIMIT_VARIABLE,
    launcher_value,
    start_limit,
)

SHARED_ERROR_NOTE = "all {} ranks have this error"
"""Note that marks an OSError that was raised on all ranks."""
SMALL_ARRAY_SIZE = 4096
"""Largest number of elements of an array that ``broadcast_small`` sends."""

_duplicating = Lock()

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")


class Ranks:
    """A communicator and its collective operations. All ranks call each of them together. The root is rank 0."""

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.rank = self.comm.rank
        self.size = self.comm.size
        self.is_root = self.rank == 0

    @classmethod
    def self_only(cls) -> "Ranks":
        """Return a communicator of this rank only."""
        return cls(MPI.COMM_SELF)

    @classmethod
    @contextmanager
    def of_call(cls, comm: MPI.Intracomm | None) -> Iterator["Ranks"]:
        """Yield the ranks of a communicator for one call of a script.

        MPI allows one thread at a time to use a communicator for collective operations. A single rank therefore gets a
        duplicate of its communicator, so that several of its threads can make such calls.
        """
        given = MPI.COMM_WORLD if comm is None else comm
        if given.size > 1:
            yield cls(given)
            return
        with _duplicating:
            duplicate = given.Dup()
        try:
            yield cls(duplicate)
        finally:
            duplicate.Free()

    def sum_on_root(self, values: np.ndarray) -> None:
        """Replace the integers ``values`` on the root by their sum over the ranks."""
        assert values.dtype == np.int64
        if self.size > 1:
            self.comm.Reduce(MPI.IN_PLACE if self.is_root else values, values if self.is_root else None, MPI.SUM, 0)

    def sum(self, values: np.ndarray) -> None:
        """Replace the integers ``values`` on every rank by their sum over the ranks."""
        assert values.dtype in (np.int64, np.uint64)
        if self.size > 1:
            self.comm.Allreduce(MPI.IN_PLACE, values, MPI.SUM)

    def allgather_rows(self, values: np.ndarray, first: int, last: int) -> None:
        """Gather the rows of all ranks, in rank order, in ``values``. This rank holds the rows [first, last)."""
        if self.size > 1:
            row_bytes = values[:1].nbytes
            counts = np.array(self.comm.allgather((last - first) * row_bytes))
            offsets = np.cumsum(counts) - counts
            self.comm.Allgatherv(MPI.IN_PLACE, [values, counts, offsets, MPI.BYTE])

    @property
    def work_sharing(self) -> NodeSharing:
        """Work sharing of all ranks. All ranks ask for it together the first time."""
        return NodeSharing.of(self.comm)

    def max(self, value: float) -> float:
        """Return the largest ``value`` of all ranks."""
        return self.comm.allreduce(value, MPI.MAX) if self.size > 1 else value

    def elementwise_max(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum of the ``values`` of all ranks."""
        found = values.copy()
        if self.size > 1:
            self.comm.Allreduce(values, found, MPI.MAX)
        return found

    def total(self, value: int) -> int:
        """Return the sum of ``value`` over the ranks."""
        return self.comm.allreduce(value) if self.size > 1 else value

    def bitwise_or(self, flags: int) -> int:
        """Return the flags, bits of an integer, that are set on any rank."""
        return self.comm.allreduce(flags, MPI.BOR) if self.size > 1 else flags

    def count_before(self, value: int) -> int:
        """Return the sum of ``value`` over the ranks before this one."""
        before = self.comm.exscan(value)
        return 0 if before is None or self.is_root else before

    def from_root(self, make: Callable[[], T]) -> T:
        """Call ``make`` on the root and return its small result on every rank.

        A UserError, OSError or SystemExit of ``make`` is raised on every rank.
        """
        value, error = None, None
        if self.is_root:
            try:
                value = make()
            except (UserError, OSError, SystemExit) as reason:
                error = reason
        if self.size > 1:
            value, error = self.comm.bcast((value, error), 0)
        if error is not None:
            raise self._with_note(error)
        return value  # type: ignore[return-value]

    def broadcast_object(self, value: T) -> T:
        """Return the small object ``value`` of the root on every rank."""
        return self.comm.bcast(value, 0) if self.size > 1 else value

    def gather(self, value: T) -> list[T]:
        """Return the small objects of all ranks on the root, and an empty list on the other ranks."""
        return self.comm.gather(value, 0) or []

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.comm.Barrier()

    def idle_barrier(self) -> None:
        """Wait for all ranks with idle cores. ``barrier`` keeps the cores busy."""
        done = self.comm.Ibarrier()
        while not done.Test():
            time.sleep(0.01)

    def barrier_with_timeout(self, seconds: float) -> None:
        """Wait for all ranks at the start. After a timeout, name the missing ranks and abort the job."""
        if self.size == 1:
            return
        sent = self.comm.isend(None, 0)
        reports = [self.comm.irecv(source=rank) for rank in range(self.size)] if self.is_root else []
        barrier = self.comm.Ibarrier()
        started = time.monotonic()
        # The root knows the missing ranks, so the other ranks give it time to print its message.
        # If the root is missing, the lowest other rank prints the message and aborts the job.
        timeout = seconds if self.is_root else 2.1 * seconds + 2 * OUTPUT_SECONDS * (self.rank - 1)
        while not barrier.Test():
            if time.monotonic() > started + timeout:
                missing = [rank for rank, report in enumerate(reports) if not report.Test()] or [0]
                print(
                    f"start: expected all {self.size} ranks within {seconds:g} s ({START_LIMIT_VARIABLE}), "
                    f"found no message of rank {', '.join(map(str, missing))}; "
                    "the memory of a rank may be too small to load the packages",
                    file=sys.stderr,
                    flush=True,
                )
                self.abort(1)
                os._exit(1)  # MPI_Abort may return before it has ended this process
            time.sleep(0.01)
        MPI.Request.Waitall([sent, *reports])

    def abort(self, code: int) -> None:
        """Abort all ranks of the job, after the launcher has had time to pass on the output of this rank."""
        time.sleep(OUTPUT_SECONDS)
        self.comm.Abort(code)

    def run_on_root(self, make: Callable[["Ranks"], T]) -> T:
        """Call ``make`` on the root, with the root as the only rank, and return its small result on every rank.

        The cores of the other ranks are idle meanwhile. A UserError or OSError is raised on every rank.
        """
        value = None
        with self.synchronise_errors():
            try:
                value = make(Ranks.self_only()) if self.is_root else None
            finally:
                self.idle_barrier()
        return cast(T, self.broadcast_object(value))

    def broadcast(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the float64 arrays of the root, in Fortran order, on every rank. All ranks pass the same shapes."""
        if self.size == 1:
            return {name: np.asarray(array, order="F") for name, array in params.items()}
        packed = np.concatenate([array.reshape(-1, order="F") for array in params.values()])
        self.comm.Bcast(packed, 0)
        flat = np.split(packed, np.cumsum([array.size for array in params.values()])[:-1])
        arrays = (values.reshape(old.shape, order="F") for values, old in zip(flat, params.values(), strict=True))
        return dict(zip(params, arrays, strict=True))

    def broadcast_small(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays that all ranks have, in Fortran order. Small arrays are replaced by the arrays of the root."""
        small = self.broadcast({name: array for name, array in params.items() if array.size <= SMALL_ARRAY_SIZE})
        return {name: small[name] if name in small else np.asarray(array, order="F") for name, array in params.items()}

    @contextmanager
    def synchronise_errors(self) -> Iterator[None]:
        """Raise a UserError or OSError of this block on all ranks: the error of the lowest rank that has one."""
        error: UserError | OSError | None = None
        try:
            yield
        except (UserError, OSError) as own_error:
            error = own_error
        if self.size > 1:
            first = np.array(self.size if error is None else self.rank)
            self.comm.Allreduce(MPI.IN_PLACE, first, MPI.MIN)
            error = self.comm.bcast(error, int(first)) if first < self.size else None
        if error is not None:
            raise self._with_note(error)

    def _with_note(self, error: E) -> E:
        """Return the error, with a note that all ranks have it if it is an OSError."""
        if isinstance(error, OSError):
            error.add_note(SHARED_ERROR_NOTE.format(self.size))
        return error

    def load_kernels(self) -> None:
        """Load the kernels of all imported modules. Missing kernels are compiled.

        The ranks of a node divide the compilation among them. The node of the root is first, so that the other nodes
        find its compiled kernels if they share a file system.
        """
        from parallel_et.kernels import cache  # slow to load

        with self.synchronise_errors():
            self._print_notes(cache.notes())
            missing = cache.missing()
        if self.size > 1 and self.comm.allreduce(missing, MPI.LOR):
            node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
            with_root = node.allreduce(self.is_root, MPI.LOR)
            for turn in (True, False):
                if with_root == turn:
                    cache.load_declared(node.rank, node.size)
                self.idle_barrier()
            node.Free()
        cache.load_declared()
        self._print_notes(cache.notes())

    def _print_notes(self, notes: Sequence[str]) -> None:
        """Print notes on the root."""
        for note in notes if self.is_root else ():
            print(f"note: {note}", file=sys.stderr, flush=True)

    def sum_on_node(self, *values: int) -> list[int]:
        """Return the sum of each value over the ranks of this node."""
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        sums = [node.allreduce(value) for value in values]
        node.Free()
        return sums

    def limit_threads(self, threads: int = 1) -> str | None:
        """Limit BLAS to one thread per thread of a rank. Return a warning if the threads outnumber the cores."""
        threadpool_limits(1)
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        ranks = node.size
        cores = os.cpu_count() or 1
        node.Free()
        each = f" of {threads} threads" if threads > 1 else ""
        return f"{ranks} ranks{each} share the {cores} cores of a node" if ranks * threads > cores else None


Command = Callable[[Ranks, Sequence[str]], int]
"""The main function of a command: takes the ranks and the arguments, and returns the exit code."""


def split_ranks(ranks: Ranks, groups: int) -> tuple[Ranks, int]:
    """Divide the ranks into ``groups`` of about equal size. Return the group of this rank and its number."""
    group = ranks.rank * groups // ranks.size
    return Ranks(cast(MPI.Intracomm, ranks.comm.Split(group, ranks.rank))), group


def library_version() -> str:
    """Return the name and version of the MPI library in one line."""
    return " ".join(MPI.Get_library_version().strip("\0\n ").splitlines()[0].split())


def check_start(size: int) -> None:
    """Exit if the launcher started several ranks, but MPI reports one rank to each of them."""
    expected = launcher_value(SIZE_VARIABLES, 1)
    if size > 1 or expected == 1:
        return
    if launcher_value(RANK_VARIABLES, 0) == 0:  # every process is a root, but only one prints
        print(
            f"start: expected {expected} ranks, found {expected} times rank 0 of 1: the launcher does not belong to "
            f"the MPI library of mpi4py ({library_version()}); try srun --mpi=pmi2 or --mpi=pmix (srun --mpi=list "
            "lists the choices), or the mpirun of that library",
            file=sys.stderr,
            flush=True,
        )
    sys.exit(2)


def shared_error_message(error: BaseException, ranks: Ranks) -> str:
    """Return the message for a user or system error that all ranks have, or "" for any other error."""
    if isinstance(error, UserError):
        return str(error)
    shared = ranks.size == 1 or SHARED_ERROR_NOTE.format(ranks.size) in getattr(error, "__notes__", ())
    if isinstance(error, OSError) and error.errno in PATH_ERRORS and error.filename and shared:
        return f"{error.filename}: expected a file or folder that can be used, found {error.strerror}"
    return ""


def run_command(load: Callable[[], Command], argv: Sequence[str] | None = None) -> NoReturn:
    """Load a command, run it on all ranks and exit with its exit code.

    The root prints a UserError or a system error about a file, and all ranks exit with code 2. All ranks must have that
    error. Any other exception aborts the job with the message of the rank that failed, because the other ranks would
    wait for this rank.
    """
    ranks = Ranks()
    check_start(ranks.size)
    argv = sys.argv[1:] if argv is None else argv
    keep_freed_memory()
    with RankWatch() as watch:
        try:
            import_module("scipy.linalg")  # its own copy of BLAS may hang if memory is small
            command = load()
            ranks.barrier_with_timeout(start_limit())
            watch.start(ranks.comm)
            for argument in argv:
                check_name(argument)
            if ranks.bitwise_or(bool(received_signal())):
                code = EXIT_STOPPED
                if ranks.is_root:
                    print_now(STOPPED_BEFORE_START)
            else:
                code = command(ranks, argv)
            ranks.barrier()  # some launchers kill ranks that exit long after the first rank
        except SystemExit:  # all ranks exit, for example after --help
            raise
        except BaseException as error:
            if line := shared_error_message(error, ranks):
                if ranks.is_root:
                    print(line, file=sys.stderr, flush=True)
                sys.exit(2)
            if ranks.rank:  # if all ranks fail, the first to print its message ends the others
                time.sleep(2 * OUTPUT_SECONDS + ranks.rank / ranks.size)
            code, text = 1, "".join(traceback.format_exception(error))
            text += f"rank {ranks.rank} of {ranks.size} failed: {error!r}"
            if isinstance(error, KeyboardInterrupt):
                code, text = 130, "interrupted"
            print(text, file=sys.stderr, flush=True)
            if ranks.size > 1:
                ranks.abort(code)
    sys.exit(code)
