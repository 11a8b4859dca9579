"""Where the time goes: seconds by phase."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parallel_et.parallel.deal import Deal

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
    """A work that was shared out: sizes of its pieces, and seconds that those took that were done here.

    Without sizes it can be shared in any way; ``once`` says whether all ranks share it, or those of each node.
    """

    sizes: Sequence[int]
    seconds: float
    once: bool = True


class Dealing:
    """A ``Deal`` that notes how long the pieces of works take; the rest is communication.

    It is for one iteration, in which no room is given twice.
    """

    def __init__(self, deal: Deal, clock: Clock) -> None:
        self.done: list[Dealt] = []
        self.rank, self.size = deal.rank, deal.size
        self._deal, self._clock = deal, clock
        self._asked: Counter[str] = Counter()

    def room(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        self._asked[name] += 1
        return self._deal.room(self._full(name), shape, dtype)

    def own(self, name: str, values: np.ndarray) -> np.ndarray:
        return self._deal.own(self._full(name), values)

    def _full(self, name: str) -> str:
        return f"{name} {self._asked[name]}"

    def here(self, count: int, work: Callable[[int, int], None]) -> None:
        self._note([], lambda timed: self._deal.here(count, timed(work)), once=False)

    def __call__(self, sizes: Sequence[int], work: Callable[[int], None], out: Callable[[int], np.ndarray]) -> None:
        self._note(sizes, lambda timed: self._deal(sizes, timed(work), out))

    def sum(self, words: np.ndarray, convert: Callable[[np.ndarray, int], None], values: np.ndarray) -> None:
        self._note([], lambda timed: self._deal.sum(words, timed(convert), values))

    def _note(self, sizes: Sequence[int], share: Callable[[Callable], None], once: bool = True) -> None:
        phase, begun, ended = self._clock.phase, 0.0, 0.0

        def timed(work: Callable[..., None]) -> Callable[..., None]:
            def piece(*args: Any) -> None:
                nonlocal begun, ended
                self._clock(phase)
                begun = begun or Clock.now()
                work(*args)
                ended = Clock.now()
                self._clock("communication")

            return piece

        self._clock("communication")
        share(timed)
        self._clock(phase)
        self.done.append(Dealt(sizes, ended - begun, once))


def phases(clock: Clock, clocks: list[Clock]) -> dict[str, float]:
    """Seconds of each phase: what the threads did with the blocks, as shares of the time that it took."""
    seconds, inside = dict.fromkeys(PHASES, 0.0), [c.stop() for c in clocks]
    seconds |= clock.stop()
    blocks = seconds.pop("blocks", 0.0)
    busy = {phase: sum(s.get(phase, 0.0) for s in inside) for phase in PHASES}
    for phase, spent in busy.items():
        seconds[phase] += blocks * spent / (sum(busy.values()) or 1.0)
    return seconds
