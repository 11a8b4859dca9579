"""What a trained model makes of points: evidence, candidates, means, MAP states, reconstructions and quality."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from parallel_et.errors import UserError
from parallel_et.models.base import Model, Params
from parallel_et.posterior.exact import MOST_CAUSES, Exact, ExactOptions
from parallel_et.posterior.states import Posterior
from parallel_et.rows import LANES, pad_rows

USUAL = ("evidence", "candidates", "means", "map", "reconstruction")
WHAT = (*USUAL, "quality")
"""What can be asked for; quality, of all 2^H states, with few causes only."""
MOST_STATES = 1 << 17
"""States a point up to which gamma is raised for a MAP state that is full. Each step doubles them or more; with this
many a point takes milliseconds, with as many as a job may have it would be a second. A job with more raises none."""
ROOM = 1 << 22
"""Weights of states, points times states, that are computed at a time."""


class Inference:
    """The E-step of a trained model at temperature 1, for one block of rows after the other.

    The MAP state is that of the job's own H' and gamma; where it is full, with gamma active causes, the point is done
    again with both raised by one, H' up to H, until it is not full, everything is considered, or there would be too
    many states (OCA sec. 4.5). All else is that of the job's own H' and gamma. The quality Q_n is the share of the
    states that it considers in the evidence of all 2^H (ET eq. 21).

    Parameters
    ----------
    model, scheme, params : the trained model, the scheme of its job and the parameters
    what : some of ``WHAT``
    """

    def __init__(self, model: Model, scheme: Any, params: Params, what: Sequence[str]) -> None:
        if wrong := [name for name in what if name not in WHAT]:
            raise UserError(f"what: expected some of {', '.join(WHAT)}, found {', '.join(wrong)}")
        self.model, self.scheme, self.what = model, scheme, frozenset(what)
        self.ready = model.prepare(params, model.at_rest(0))
        self._exact = exact_for(model.H) if "quality" in what else None
        self._raised: dict[tuple[int, int], Any] = {}
        self._lock = Lock()

    def tables(self, points: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shapes and types of all that ``block`` returns, for so many points.

        ``map`` has a column of zeros and ones for each cause; ``map_gamma`` is the gamma by which it was found: where
        the MAP state has as many causes, and gamma < H, a larger one was out of reach.
        """
        H, D = self.model.H, self.model.D
        every: dict[str, tuple[str, tuple[int, ...], str]] = {
            "evidence": ("evidence", (points,), "f8"),
            "candidates": ("candidates", (points, self.scheme.candidates), "i4"),
            "means": ("means", (points, H), "f8"),
            "map": ("map", (points, H), "u1"),
            "map_gamma": ("map", (points,), "i4"),
            "reconstruction": ("reconstruction", (points, D), "f8"),
            "quality": ("quality", (points,), "f8"),
        }
        return {name: (shape, np.dtype(kind)) for name, (asked, shape, kind) in every.items() if asked in self.what}

    def block(self, Y: np.ndarray, first: int = 0) -> dict[str, np.ndarray]:
        """All that was asked for of a block of finite rows (n, D), the first with the index ``first`` in the data."""
        if Y.shape[1] not in (self.model.D, self.model.width):
            raise UserError(f"data: expected rows of {self.model.D} numbers, found {Y.shape[1]}")
        found = {name: np.zeros(shape, kind) for name, (shape, kind) in self.tables(len(Y)).items()}
        scheme, rows = self.scheme, np.arange(len(Y))
        while scheme is not None and len(rows):
            for some in pieces(rows, len(scheme.states)):
                y = pad_rows(Y[some])
                posterior = scheme.infer(self.model, self.ready, y, 1.0, lambda phase: None)
                check_finite(posterior, first + some)
                if scheme is self.scheme:
                    self._note(posterior, some, found)
                if "map" in self.what:
                    causes = self.model.best_states(self.ready, y, posterior, scheme.states)
                    found["map"][some] = as_binary(causes, self.model.H)
                    found["map_gamma"][some] = scheme.gamma
            if "map" not in self.what:
                break
            rows = np.flatnonzero(found["map"].sum(1) == found["map_gamma"])
            scheme = self._raise(scheme) if len(rows) else None
        if self._exact is not None:
            for some in pieces(np.arange(len(Y)), len(self._exact.states)):
                whole = self._exact.infer(self.model, self.ready, pad_rows(Y[some]), 1.0, lambda phase: None)
                found["quality"][some] = np.exp(np.minimum(found["quality"][some] - whole.evidence, 0.0))
        return found

    def full(self, found: dict[str, np.ndarray]) -> int:
        """How many MAP states of a block have as many causes as could be considered, though there are more."""
        if "map" not in found:
            return 0
        gamma = found["map_gamma"]
        return int(((found["map"].sum(1) == gamma) & (gamma < self.model.H)).sum())

    def _note(self, posterior: Posterior, rows: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Write down what the job's own H' and gamma give for some rows of a block."""
        if "evidence" in found:
            found["evidence"][rows] = posterior.evidence
        if "candidates" in found:
            found["candidates"][rows] = posterior.candidates
        if "means" in found:
            found["means"][rows] = self.model.means(posterior, self.scheme.states)
        if "reconstruction" in found:
            found["reconstruction"][rows] = self.model.reconstruction(self.ready, posterior, self.scheme.states)
        if "quality" in found:
            found["quality"][rows] = posterior.evidence  # until that of all states is known

    def _raise(self, scheme: Any) -> Any:
        """The scheme with H' and gamma raised by one, made once for all blocks; None if there is none."""
        key = (scheme.candidates, scheme.gamma)
        with self._lock:
            if key not in self._raised:
                self._raised[key] = scheme.raised(self.model.H, MOST_STATES)
            return self._raised[key]


@lru_cache(1)
def exact_for(causes: int) -> Exact:
    """The scheme that considers all states."""
    if causes > MOST_CAUSES:
        raise UserError(f"quality: expected a model of at most {MOST_CAUSES} causes, found {causes}")
    return Exact(ExactOptions(), causes)


def pieces(rows: np.ndarray, states: int) -> Iterator[np.ndarray]:
    """The rows in so small pieces that the weights of all states fit in ``ROOM``; whole vectors of them at least."""
    count = max(1, ROOM // (states * LANES)) * LANES
    for start in range(0, len(rows), count):
        yield rows[start : start + count]


def as_binary(causes: np.ndarray, H: int) -> np.ndarray:
    """States given by their causes, padded with -1, as rows of zeros and ones; (n, H) uint8."""
    table = np.zeros((len(causes), H + 1), np.uint8)
    np.put_along_axis(table, causes, 1, 1)  # what is padded goes to the last column
    return table[:, :H]


def check_finite(posterior: Posterior, rows: np.ndarray) -> None:
    """An error that names the first of the rows without evidence."""
    bad = np.flatnonzero(~np.isfinite(posterior.evidence))
    if len(bad):
        raise UserError(f"point {rows[bad[0]]}: expected finite evidence, found {posterior.evidence[bad[0]]}")
