"""The ranks of a run: the few collective operations that everything else is made of."""

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

from parallel_et.control.process import keep_freed_memory, tell
from parallel_et.control.signals import NOT_BEGUN, STOPPED, heard
from parallel_et.errors import PLACE, UserError, check_name
from parallel_et.parallel.mpi import MPI
from parallel_et.parallel.rank_watch import HEARD_WITHIN, Watch
from parallel_et.parallel.shared_memory import Node
from parallel_et.parallel.watched_start import LIMIT, PLACES, SIZES, start_limit, told

EVERYBODY = "all {} ranks have this error"
FEW = 4096
"""Numbers that cost next to nothing to send."""

_duplicating = Lock()

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")


class Ranks:
    """A communicator and the operations that a run needs of it; the root is rank 0."""

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.rank = self.comm.rank
        self.size = self.comm.size
        self.is_root = self.rank == 0

    @classmethod
    def alone(cls) -> "Ranks":
        """This rank as the only one."""
        return cls(MPI.COMM_SELF)

    @classmethod
    @contextmanager
    def of_call(cls, comm: MPI.Intracomm | None) -> Iterator["Ranks"]:
        """Return the ranks of a communicator for one call of a script.

        MPI allows collective operations on a communicator to one thread at a time. A rank that is alone gets a
        communicator of its own, so that several of its threads can make such calls; several ranks pass theirs.
        """
        given = MPI.COMM_WORLD if comm is None else comm
        if given.size > 1:
            yield cls(given)
            return
        with _duplicating:
            own = given.Dup()
        try:
            yield cls(own)
        finally:
            own.Free()

    def sum_on_root(self, values: np.ndarray) -> None:
        """Replace ``values`` on the root by their sum over the ranks; integers only, so that the order is free."""
        assert values.dtype == np.int64
        if self.size > 1:
            self.comm.Reduce(MPI.IN_PLACE if self.is_root else values, values if self.is_root else None, MPI.SUM, 0)

    def sum(self, values: np.ndarray) -> None:
        """Replace ``values`` on every rank by their sum over the ranks; integers only."""
        assert values.dtype in (np.int64, np.uint64)
        if self.size > 1:
            self.comm.Allreduce(MPI.IN_PLACE, values, MPI.SUM)

    def complete(self, values: np.ndarray, first: int, last: int) -> None:
        """Fill ``values`` on every rank; this one has their rows [first, last), in the order of the ranks."""
        if self.size > 1:
            row = values[:1].nbytes
            counts = np.array(self.comm.allgather((last - first) * row))
            places = np.cumsum(counts) - counts
            self.comm.Allgatherv(MPI.IN_PLACE, [values, counts, places, MPI.BYTE])

    @property
    def node(self) -> Node:
        """How works are shared out over all ranks; those of a node share memory. All ask for the first one together."""
        return Node.of(self.comm)

    def max(self, value: float) -> float:
        """The largest ``value`` of all ranks."""
        return self.comm.allreduce(value, MPI.MAX) if self.size > 1 else value

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum of the ``values`` of all ranks."""
        found = values.copy()
        if self.size > 1:
            self.comm.Allreduce(values, found, MPI.MAX)
        return found

    def total(self, value: int) -> int:
        """The sum of ``value`` over the ranks, on every rank."""
        return self.comm.allreduce(value) if self.size > 1 else value

    def either(self, flags: int) -> int:
        """The flags, bits of an integer, that any rank has."""
        return self.comm.allreduce(flags, MPI.BOR) if self.size > 1 else flags

    def count_before(self, value: int) -> int:
        """Sum of ``value`` over the ranks before this one."""
        before = self.comm.exscan(value)
        return 0 if before is None or self.is_root else before

    def from_root(self, make: Callable[[], T]) -> T:
        """What ``make`` returns on the root, on every rank, if small; its UserError, OSError or exit is everybody's."""
        value, error = None, None
        if self.is_root:
            try:
                value = make()
            except (UserError, OSError, SystemExit) as reason:
                error = reason
        if self.size > 1:
            value, error = self.comm.bcast((value, error), 0)
        if error is not None:
            raise self._noted(error)
        return value  # type: ignore[return-value]

    def of_root(self, value: T) -> T:
        """The root's ``value``, on every rank. For small objects."""
        return self.comm.bcast(value, 0) if self.size > 1 else value

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, on the root; elsewhere none. For small objects."""
        return self.comm.gather(value, 0) or []

    def meet(self) -> None:
        """Wait for all ranks."""
        self.comm.Barrier()

    def meet_idly(self) -> None:
        """Wait for all ranks, and leave the cores to those that work: MPI itself would keep them busy."""
        done = self.comm.Ibarrier()
        while not done.Test():
            time.sleep(0.01)

    def meet_in_time(self, seconds: float) -> None:
        """Wait for all ranks as they start; if some do not come in time, name them and end the job."""
        if self.size == 1:
            return
        sent = self.comm.isend(None, 0)
        reports = [self.comm.irecv(source=rank) for rank in range(self.size)] if self.is_root else []
        all_here, begun = self.comm.Ibarrier(), time.monotonic()
        # Others than the root wait until it would have spoken, even if it was late, and then know who is silent;
        # the first to speak ends the others.
        patience = seconds if self.is_root else 2.1 * seconds + 2 * HEARD_WITHIN * (self.rank - 1)
        while not all_here.Test():
            if time.monotonic() > begun + patience:
                silent = [rank for rank, report in enumerate(reports) if not report.Test()] or [0]
                print(
                    f"start: expected all {self.size} ranks within {seconds:g} s ({LIMIT}), found nothing of rank "
                    f"{', '.join(map(str, silent))}: it hangs, as where memory is too small to load the packages",
                    file=sys.stderr,
                    flush=True,
                )
                self.end_all(1)
                os._exit(1)  # it may take a while to end this process, and returns
            time.sleep(0.01)
        MPI.Request.Waitall([sent, *reports])

    def end_all(self, code: int) -> None:
        """End every rank of the job, once what this one has said is heard."""
        time.sleep(HEARD_WITHIN)
        self.comm.Abort(code)

    def on_root_alone(self, make: Callable[["Ranks"], T]) -> T:
        """What ``make`` returns for the root as the only rank, on every rank; the others leave their cores to it.

        Its UserError or OSError is everybody's.
        """
        value = None
        with self.together():
            try:
                value = make(Ranks.alone()) if self.is_root else None
            finally:
                self.meet_idly()
        return cast(T, self.of_root(value))

    def share(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The root's float64 arrays on every rank, in one message and in Fortran's order; all know their shapes."""
        if self.size == 1:
            return {name: np.asarray(array, order="F") for name, array in params.items()}
        packed = np.concatenate([array.reshape(-1, order="F") for array in params.values()])
        self.comm.Bcast(packed, 0)
        parts = np.split(packed, np.cumsum([array.size for array in params.values()])[:-1])
        arrays = (part.reshape(old.shape, order="F") for part, old in zip(parts, params.values(), strict=True))
        return dict(zip(params, arrays, strict=True))

    def agree(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What all ranks have made alike, in Fortran's order; of what is small the root's, to be sure."""
        small = self.share({name: array for name, array in params.items() if array.size <= FEW})
        return {name: small[name] if name in small else np.asarray(array, order="F") for name, array in params.items()}

    @contextmanager
    def together(self) -> Iterator[None]:
        """A UserError or OSError in this block on any rank is raised on all: that of the lowest such rank."""
        error: UserError | OSError | None = None
        try:
            yield
        except (UserError, OSError) as mine:
            error = mine
        if self.size > 1:
            first = np.array(self.size if error is None else self.rank)
            self.comm.Allreduce(MPI.IN_PLACE, first, MPI.MIN)
            error = self.comm.bcast(error, int(first)) if first < self.size else None
        if error is not None:
            raise self._noted(error)

    def _noted(self, error: E) -> E:
        """The error; one of the system's says from now on who has it."""
        if isinstance(error, OSError):
            error.add_note(EVERYBODY.format(self.size))
        return error

    def load_kernels(self) -> None:
        """Load the kernels of all modules that are imported by now; all ranks call this together.

        Where some have to be compiled, the ranks of a node share them, those of the root's node first: each then finds
        what others compiled. Else all ranks load them at the same time.
        """
        from parallel_et.kernels import cache  # takes its time to load

        with self.together():
            self._print_notes(cache.notes())
            missing = cache.missing()
        if self.size > 1 and self.comm.allreduce(missing, MPI.LOR):
            node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
            with_root = node.allreduce(self.is_root, MPI.LOR)
            for turn in (True, False):
                if with_root == turn:
                    cache.load_declared(node.rank, node.size)
                self.meet_idly()
            node.Free()
        cache.load_declared()
        self._print_notes(cache.notes())

    def _print_notes(self, notes: Sequence[str]) -> None:
        for note in notes if self.is_root else ():
            print(f"note: {note}", file=sys.stderr, flush=True)

    def sum_on_node(self, *values: int) -> list[int]:
        """The sum of each of the values over the ranks that share this one's node."""
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        sums = [node.allreduce(value) for value in values]
        node.Free()
        return sums

    def limit_threads(self, threads: int = 1) -> str | None:
        """One BLAS thread for each of a rank's threads; returns a warning where these outnumber the cores of a node."""
        threadpool_limits(1)
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        here, cores = node.size, os.cpu_count() or 1
        node.Free()
        each = f" of {threads} threads" if threads > 1 else ""
        return f"{here} ranks{each} share the {cores} cores of a node" if here * threads > cores else None


Command = Callable[[Ranks, Sequence[str]], int]
"""From the words of a command line to an exit code."""


def split(ranks: Ranks, groups: int) -> tuple[Ranks, int]:
    """Divide the ranks into ``groups`` as equal as can be; returns this rank's group and its number."""
    group = ranks.rank * groups // ranks.size
    return Ranks(cast(MPI.Intracomm, ranks.comm.Split(group, ranks.rank))), group


def library_version() -> str:
    """The MPI library, in one line."""
    return " ".join(MPI.Get_library_version().strip("\0\n ").splitlines()[0].split())


def check_start(size: int) -> None:
    """Refuse to be one of many processes that each believe to be the only rank."""
    expected = told(SIZES, 1)
    if size > 1 or expected == 1:
        return
    if told(PLACES, 0) == 0:  # one line, though each is a root
        print(
            f"start: expected {expected} ranks, found {expected} times rank 0 of 1: the launcher does not belong to "
            f"the MPI library of mpi4py ({library_version()}); try srun --mpi=pmi2 or --mpi=pmix (srun --mpi=list "
            "shows what there is), or the mpirun of that library",
            file=sys.stderr,
            flush=True,
        )
    sys.exit(2)


def mistake(error: BaseException, ranks: Ranks) -> str:
    """The line that tells of an error that all ranks have and that is not ours; nothing if it is another."""
    if isinstance(error, UserError):
        return str(error)
    everybody = ranks.size == 1 or EVERYBODY.format(ranks.size) in getattr(error, "__notes__", ())
    if isinstance(error, OSError) and error.errno in PLACE and error.filename and everybody:
        return f"{error.filename}: expected a file or folder that can be used, found {error.strerror}"
    return ""


def run_command(load: Callable[[], Command], argv: Sequence[str] | None = None) -> NoReturn:
    """Load a command, run it on all ranks and leave with its exit code.

    A UserError, which all ranks have by then, is printed by the root: exit code 2. So is a file or folder of which the
    system says that it cannot be used, if all ranks have heard so. Any other exception ends the whole job at once with
    the message of the rank that failed; without this the other ranks would wait for ever.
    """
    ranks = Ranks()
    check_start(ranks.size)
    argv = sys.argv[1:] if argv is None else argv
    keep_freed_memory()
    with Watch() as watch:
        try:
            import_module("scipy.linalg")  # has a BLAS of its own, which may hang where memory is small
            command = load()
            ranks.meet_in_time(start_limit())
            watch.begin(ranks.comm)
            for word in argv:
                check_name(word)
            if ranks.either(bool(heard())):
                code = STOPPED
                if ranks.is_root:
                    tell(NOT_BEGUN)
            else:
                code = command(ranks, argv)
            ranks.meet()  # launchers may end those that stay long after the first has left
        except SystemExit:  # all ranks leave together, as after --help
            raise
        except BaseException as error:
            if line := mistake(error, ranks):
                if ranks.is_root:
                    print(line, file=sys.stderr, flush=True)
                sys.exit(2)
            if ranks.rank:  # if all fail alike, the first to speak ends the others
                time.sleep(2 * HEARD_WITHIN + ranks.rank / ranks.size)
            code, text = 1, "".join(traceback.format_exception(error))
            text += f"rank {ranks.rank} of {ranks.size} failed: {error!r}"
            if isinstance(error, KeyboardInterrupt):
                code, text = 130, "interrupted"
            print(text, file=sys.stderr, flush=True)
            if ranks.size > 1:
                ranks.end_all(code)
    sys.exit(code)
