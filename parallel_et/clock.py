"""Where the time goes: seconds by phase."""

from collections import defaultdict
from time import perf_counter


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
