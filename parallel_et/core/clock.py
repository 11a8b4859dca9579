"""Where the time goes: seconds by phase."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import ClassVar, NamedTuple

import numpy as np

from parallel_et.core.terms import Deal, Work

PHASES = ("prepare", "select", "states", "statistics", "cut", "communication", "mstep")
"""What an iteration is made of, for those who want to know where its time goes."""


class Clock:
    """A stopwatch that is told what is being done now; all time belongs to some phase."""

    now: ClassVar[Callable[[], float]] = perf_counter
    """What all stopwatches look at."""

    def __init__(self, phase: str) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.phase, self._since = phase, Clock.now()

    def __call__(self, phase: str) -> None:
        now = Clock.now()
        self.seconds[self.phase] += now - self._since
        self.phase, self._since = phase, now

    def stop(self) -> dict[str, float]:
        """The seconds of all phases so far."""
        self(self.phase)
        return self.seconds


class Dealt(NamedTuple):
    """A work that was shared out: the sizes of its pieces, and seconds that those took that were done here."""

    sizes: Sequence[int]
    seconds: float


class Dealing:
    """Shares out the pieces of works as ``deal`` does, and notes how long they take; the rest is communication."""

    def __init__(self, deal: Deal, clock: Clock) -> None:
        self.done: list[Dealt] = []
        self._deal, self._clock = deal, clock

    def __call__(self, sizes: Sequence[int], work: Work) -> np.ndarray:
        phase, seconds = self._clock.phase, 0.0

        def timed(piece: int, room: np.ndarray) -> None:
            nonlocal seconds
            self._clock(phase)
            begun = Clock.now()
            work(piece, room)
            seconds += Clock.now() - begun
            self._clock("communication")

        self._clock("communication")
        found = self._deal(sizes, timed)
        self._clock(phase)
        self.done.append(Dealt(sizes, seconds))
        return found


def phases(clock: Clock, clocks: list[Clock]) -> dict[str, float]:
    """Seconds of each phase: what the threads did with the blocks, as shares of the time that it took."""
    seconds, inside = dict.fromkeys(PHASES, 0.0), [c.stop() for c in clocks]
    seconds |= clock.stop()
    blocks = seconds.pop("blocks", 0.0)
    busy = {phase: sum(s.get(phase, 0.0) for s in inside) for phase in PHASES}
    for phase, spent in busy.items():
        seconds[phase] += blocks * spent / (sum(busy.values()) or 1.0)
    return seconds
