"""Where the time goes: seconds by phase."""

from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from parallel_et.core.terms import Deal, Work

PHASES = ("prepare", "select", "states", "statistics", "cut", "communication", "mstep")
"""What an iteration is made of, for those who want to know where its time goes."""


class Clock:
    """A stopwatch that is told what is being done now; all time belongs to some phase."""

    def __init__(self, phase: str) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._phase, self._since = phase, perf_counter()

    def __call__(self, phase: str) -> None:
        now = perf_counter()
        self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def stop(self) -> dict[str, float]:
        """The seconds of all phases so far."""
        self(self._phase)
        return self.seconds


class Dealt(NamedTuple):
    """A work that was shared out: the sizes of its pieces, and seconds that those took that were done here."""

    sizes: Sequence[int]
    seconds: float


class Dealing:
    """Shares out the pieces of works as ``deal`` does, and notes how long they take."""

    def __init__(self, deal: Deal) -> None:
        self.done: list[Dealt] = []
        self._deal = deal

    def __call__(self, sizes: Sequence[int], work: Work) -> np.ndarray:
        seconds = 0.0

        def timed(piece: int, room: np.ndarray) -> None:
            nonlocal seconds
            begun = perf_counter()
            work(piece, room)
            seconds += perf_counter() - begun

        found = self._deal(sizes, timed)
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
