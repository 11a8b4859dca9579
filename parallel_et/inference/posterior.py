"""What a trained model makes of points: evidence, candidates, means, MAP states, reconstructions and quality."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from parallel_et.core.capabilities import Extensible, Preselects
from parallel_et.core.latent_states import Latents, binary, on_grid, places
from parallel_et.core.model import EnumeratingView, Model
from parallel_et.core.posterior import Posterior, Sparse
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Block, Params
from parallel_et.em.e_step import context_at_rest
from parallel_et.em.holdout import in_round, posterior_of
from parallel_et.errors import UserError
from parallel_et.kernels.rows import LANES, pad_rows
from parallel_et.schemes.exact import Exact, ExactOptions

USUAL = ("evidence", "candidates", "means", "map", "reconstruction")
WHAT = (*USUAL, "quality")
"""What can be asked for; quality, of all 2^H states, with few causes only."""
VALUED = ("active", "variances")
"""What comes with the means where causes have values."""
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
    mean : (D,) what was subtracted from the rows, if anything; reconstructions have it again
    """

    def __init__(
        self, model: Model, scheme: Scheme, params: Params, what: Sequence[str], mean: np.ndarray | None = None
    ) -> None:
        if wrong := [name for name in what if name not in WHAT]:
            raise UserError(f"what: expected some of {', '.join(WHAT)}, found {', '.join(wrong)}")
        self.model, self.scheme, self.params, self.mean = model, scheme, params, mean
        self.what = frozenset(what) - ({"candidates"} if not scheme.candidates else set())
        self.step = context_at_rest(model, scheme, params)
        self._exact = exact_for(model.latents) if "quality" in what else None
        self._raised: dict[int, Scheme | None] = {}
        self._lock = Lock()

    def tables(self, points: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shapes and types of all that ``block`` returns, for so many points.

        ``means`` are those of s; where causes have values, ``active`` is the probability of each to be active, and
        ``variances`` are those of s. ``map`` has a column of zeros and ones for each cause; ``map_gamma`` is the gamma
        by which it was found: where the MAP state has as many causes, and gamma < H, a larger one was out of reach.
        Where their order counts, ``map_order`` has the place of each active cause, from 1 on; 0 for others.
        Where causes stand at places of an image, ``map_places`` has row and column of each active cause; -1 for others.
        """
        atoms, D = self.model.latents.atoms, self.model.D
        every: dict[str, tuple[str, tuple[int, ...], str]] = {
            "evidence": ("evidence", (points,), "f8"),
            "candidates": ("candidates", (points, self.scheme.candidates), "i4"),
            "means": ("means", (points, atoms), "f8"),
            **(dict.fromkeys(VALUED, ("means", (points, atoms), "f8")) if self.model.valued else {}),
            "map": ("map", (points, atoms), "u1"),
            "map_gamma": ("map", (points,), "i4"),
            **({"map_order": ("map", (points, atoms), "u2")} if self.model.latents.ordered else {}),
            **({"map_places": ("map", (points, self.model.H, 2), "i4")} if self.model.grid else {}),
            "reconstruction": ("reconstruction", (points, D), "f8"),
            "quality": ("quality", (points,), "f8"),
        }
        return {name: (shape, np.dtype(kind)) for name, (asked, shape, kind) in every.items() if asked in self.what}

    def block(self, Y: np.ndarray, first: int = 0) -> dict[str, np.ndarray]:
        """All that was asked for of a block of finite rows (n, D), the first with the index ``first`` in the data."""
        if Y.shape[1] not in (self.model.D, self.model.width):
            raise UserError(f"data: expected rows of {self.model.D} numbers, found {Y.shape[1]}")
        found = {name: np.zeros(shape, kind) for name, (shape, kind) in self.tables(len(Y)).items()}
        rows = np.arange(len(Y))
        scheme: Scheme | None = self.scheme
        while scheme is not None and len(rows):
            for some in pieces(rows, scheme.count):
                block, posterior = self._posterior(scheme, Y, some, first)
                if scheme is self.scheme:
                    self._note(block, posterior, some, found)
                if "map" in self.what:
                    states = self.step.evaluator.observe(block).best(posterior)
                    found["map"][some] = binary(states, self.model.latents.atoms)
                    found["map_gamma"][some] = scheme.most
                    if self.model.latents.ordered:
                        found["map_order"][some] = places(states, self.model.latents.atoms)
                    if self.model.grid:
                        found["map_places"][some] = on_grid(states, self.model.H, self.model.grid)
            if "map" not in self.what:
                break
            rows = np.flatnonzero(found["map"].sum(1) == found["map_gamma"])
            scheme = self._raise(scheme) if len(rows) else None
        if self._exact is not None:
            for some in pieces(np.arange(len(Y)), self._exact.count):
                _, whole = self._posterior(self._exact, Y, some, first)
                found["quality"][some] = np.exp(np.minimum(found["quality"][some] - whole.evidence, 0.0))
        return found

    def explain(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """The mean of each point (n, D) given its state (n, g), with the values that are expected then, if any are."""
        view = self.step.evaluator.observe(self.rows_as_block(Y, 0), singles=True)
        if not isinstance(view, EnumeratingView):
            return self.model.mean(self.params, states)
        given = view.over_listed(np.zeros(len(Y)), states[:, None], Sparse.of(np.ones((len(Y), 1))))
        return view.reconstruct(given)

    def rows_as_block(self, Y: np.ndarray, first: int) -> Block:
        """Rows (n, D or wider) as models take them."""
        return Block(pad_rows(Y[:, : self.model.D]), self.model.D, first)

    def full(self, found: dict[str, np.ndarray]) -> int:
        """How many MAP states of a block have as many causes as could be considered, though there are more."""
        if "map" not in found:
            return 0
        gamma, latents = found["map_gamma"], self.model.latents
        return int(((found["map"].sum(1) == gamma) & (gamma < latents.most_of(latents.atoms))).sum())

    def _posterior(self, scheme: Scheme, Y: np.ndarray, rows: np.ndarray, first: int) -> tuple[Block, Posterior]:
        """The posterior of some rows of a block; UserError that names the first of them without evidence."""
        block = Block(pad_rows(Y[rows]), self.model.D, first + int(rows[0]))
        posterior = posterior_of(self.step, scheme, block)
        bad = np.flatnonzero(~np.isfinite(posterior.evidence))
        if len(bad):
            found = posterior.evidence[bad[0]]
            raise UserError(f"point {first + rows[bad[0]]}: expected finite evidence, found {found}")
        return block, posterior

    def _note(self, block: Block, posterior: Any, rows: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Write down what the job's own scheme gives for some rows of a block."""
        if "evidence" in found:
            found["evidence"][rows] = posterior.evidence
        if "candidates" in found:
            scheme, context = self.scheme, in_round(self.step, 0)
            own = scheme.candidates_of(context, block) if isinstance(scheme, Preselects) else posterior.candidates
            found["candidates"][rows] = own
        for name in ("means", *VALUED):
            if name in found:
                found[name][rows] = getattr(posterior, name)(self.model.latents.atoms)
        if "reconstruction" in found:
            centred = self.step.evaluator.observe(block).reconstruct(posterior)
            found["reconstruction"][rows] = centred if self.mean is None else centred + self.mean
        if "quality" in found:
            found["quality"][rows] = posterior.evidence  # until that of all states is known

    def _raise(self, scheme: Scheme) -> Scheme | None:
        """The scheme with one more active cause, made once for all blocks; None if there is none."""
        with self._lock:
            if scheme.most not in self._raised:
                more = scheme.extended(self.model.latents, MOST_STATES) if isinstance(scheme, Extensible) else None
                self._raised[scheme.most] = more
            return self._raised[scheme.most]


@lru_cache(1)
def exact_for(latents: Latents) -> Exact:
    """The scheme that considers all states."""
    for _, expected, found in ExactOptions().mistakes(latents):
        raise UserError(f"quality: expected {expected}, found {found}")
    return Exact(ExactOptions(), latents)


def pieces(rows: np.ndarray, states: int) -> Iterator[np.ndarray]:
    """The rows in so small pieces that the weights of all states fit in ``ROOM``; whole vectors of them at least."""
    count = max(1, ROOM // (states * LANES)) * LANES
    for start in range(0, len(rows), count):
        yield rows[start : start + count]
