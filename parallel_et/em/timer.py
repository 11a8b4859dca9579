"""Seconds of an iteration by phase, and the work that ranks shared in it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parallel_et.parallel.work_sharing import WorkSharing, serial

PHASES = ("prepare", "select", "states", "statistics", "cut", "communication", "mstep")
"""The phases of an iteration."""


class Timer:
    """A stopwatch with phases. A call with the name of a phase ends the phase before it."""

    now: ClassVar[Callable[[], float]] = perf_counter
    """The clock of all timers."""

    def __init__(self, phase: str) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.phase, self._since = phase, Timer.now()

    def __call__(self, phase: str) -> None:
        now = Timer.now()
        self.seconds[self.phase] += now - self._since
        self.phase, self._since = phase, now

    def stop(self) -> dict[str, float]:
        """Return the seconds of all phases so far."""
        self(self.phase)
        return self.seconds


class SharedWork(NamedTuple):
    """Work that ranks shared.

    Attributes
    ----------
    sizes : size of each piece; empty if the work can be divided anywhere
    seconds : time of the pieces of this rank
    once : whether all ranks share the work; else the ranks of each node share it
    """

    sizes: Sequence[int]
    seconds: float
    once: bool = True


class IterationTimer(Timer):
    """The timer of an iteration, with a timer for each thread and a list of the shared work."""

    def __init__(self, threads: int) -> None:
        super().__init__("prepare")
        self.threads = [Timer("waiting") for _ in range(threads)]
        self.shared_work: list[SharedWork] = []

    def measured(self, work_sharing: WorkSharing = serial) -> "MeasuredSharing":
        """Return work sharing that reports to this timer."""
        return MeasuredSharing(work_sharing, self)

    def report(self) -> tuple[dict[str, float], list[SharedWork]]:
        """Return the seconds of each phase and the shared work. Time in blocks is divided as the threads spent it."""
        seconds = dict.fromkeys(PHASES, 0.0)
        in_blocks = [timer.stop() for timer in self.threads]
        seconds |= self.stop()
        blocks = seconds.pop("blocks", 0.0)
        busy = {phase: sum(spent.get(phase, 0.0) for spent in in_blocks) for phase in PHASES}
        for phase, spent in busy.items():
            seconds[phase] += blocks * spent / (sum(busy.values()) or 1.0)
        return seconds, self.shared_work


class MeasuredSharing:
    """A ``WorkSharing`` of one iteration that measures the pieces of works; the rest of their time is communication.

    Each shared array is handed out only once.
    """

    def __init__(self, work_sharing: WorkSharing, timer: IterationTimer) -> None:
        self.rank, self.size = work_sharing.rank, work_sharing.size
        self._work_sharing, self._timer = work_sharing, timer
        self._asked: Counter[str] = Counter()

    def shared_array(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        self._asked[name] += 1
        return self._work_sharing.shared_array(self._full(name), shape, dtype)

    def private_copy(self, name: str, values: np.ndarray) -> np.ndarray:
        return self._work_sharing.private_copy(self._full(name), values)

    def _full(self, name: str) -> str:
        return f"{name} {self._asked[name]}"

    def map_range(self, count: int, work: Callable[[int, int], None]) -> None:
        self._note([], lambda timed: self._work_sharing.map_range(count, timed(work)), once=False)

    def map_pieces(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        self._note(sizes, lambda timed: self._work_sharing.map_pieces(sizes, timed(work), out))

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        self._note([], lambda timed: self._work_sharing.sum(words, timed(convert), values))

    def _note(self, sizes: Sequence[int], share: Callable[[Callable], None], once: bool = True) -> None:
        phase, begun, ended = self._timer.phase, 0.0, 0.0

        def timed(work: Callable[..., None]) -> Callable[..., None]:
            def piece(*args: Any) -> None:
                nonlocal begun, ended
                self._timer(phase)
                begun = begun or Timer.now()
                work(*args)
                ended = Timer.now()
                self._timer("communication")

            return piece

        self._timer("communication")
        share(timed)
        self._timer(phase)
        self._timer.shared_work.append(SharedWork(sizes, ended - begun, once))
