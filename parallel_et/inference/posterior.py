"""Inference with a trained model: evidence, candidates, means, MAP states, reconstructions and quality of points."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from parallel_et.core.capabilities import Extensible, Preselects
from parallel_et.core.latent_states import Latents, binary, on_grid, places_by_atom
from parallel_et.core.model import EnumeratingView, Model
from parallel_et.core.posterior import Posterior, Sparse
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Block, Params
from parallel_et.em.e_step import inference_context
from parallel_et.em.holdout import posterior_of, with_round
from parallel_et.errors import UserError
from parallel_et.kernels.rows import LANES, pad_rows
from parallel_et.schemes.exact import Exact, ExactOptions

DEFAULT_QUANTITIES = ("evidence", "candidates", "means", "map", "reconstruction")
QUANTITIES = (*DEFAULT_QUANTITIES, "quality")
"""Quantities that can be inferred; quality needs all 2^H states, and is limited to few causes."""
STRENGTH_QUANTITIES = ("active", "variances")
"""Quantities that accompany the means of causes with strengths."""
MAX_MAP_STATES = 1 << 17
"""Maximum number of states per point after gamma was raised for a full MAP state. Such a point takes milliseconds."""
MAX_WEIGHTS = 1 << 22
"""Largest number of weights, points times states, that are computed at a time."""


class Inference:
    """The E-step of a trained model at temperature 1, for blocks of rows.

    All quantities are computed with H' and gamma of the job, except the MAP state. If the MAP state is full, that is,
    has gamma active causes, H' and gamma are raised by one and the point is inferred again. This ends when the state
    is not full, all states are considered, or the number of states exceeds a limit (OCA sec. 4.5).
    The quality Q_n is the fraction of the considered states in the evidence of all 2^H states (ET eq. 21).

    Parameters
    ----------
    model, scheme, params : trained model, scheme of its job, and parameters
    quantities : some of ``QUANTITIES``
    mean : (D,) mean that was subtracted from the rows, added to reconstructions
    """

    def __init__(
        self, model: Model, scheme: Scheme, params: Params, quantities: Sequence[str], mean: np.ndarray | None = None
    ) -> None:
        if wrong := [name for name in quantities if name not in QUANTITIES]:
            raise UserError(f"quantities: expected some of {', '.join(QUANTITIES)}, found {', '.join(wrong)}")
        self.model, self.scheme, self.params, self.mean = model, scheme, params, mean
        self.quantities = frozenset(quantities) - ({"candidates"} if not scheme.candidates else set())
        self.step = inference_context(model, scheme, params)
        self._exact = exact_scheme_for(model.latents) if "quality" in quantities else None
        self._raised: dict[int, Scheme | None] = {}
        self._lock = Lock()

    def tables(self, points: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Return name -> (shape, type) of the arrays that ``block`` returns for a number of points.

        * evidence (n,): log evidence, or its lower bound
        * candidates (n, H'): preselected causes
        * means (n, H): posterior means of s
        * active, variances (n, H): probability that a cause is active, and variance of s, for causes with strengths
        * map (n, H): most probable state, zeros and ones
        * map_gamma (n,): gamma of the search; a MAP state with gamma < H active causes may be incomplete
        * map_order (n, H): depth rank of each active cause, from 1, and 0 for others, in models with an order
        * map_places (n, H, 2): row and column of each active cause, and -1 for others, in models with positions
        * reconstruction (n, D): posterior mean of the point without noise
        * quality (n,): Q_n
        """
        atoms, D = self.model.latents.atoms, self.model.D
        every: dict[str, tuple[str, tuple[int, ...], str]] = {
            "evidence": ("evidence", (points,), "f8"),
            "candidates": ("candidates", (points, self.scheme.candidates), "i4"),
            "means": ("means", (points, atoms), "f8"),
            **(dict.fromkeys(STRENGTH_QUANTITIES, ("means", (points, atoms), "f8")) if self.model.valued else {}),
            "map": ("map", (points, atoms), "u1"),
            "map_gamma": ("map", (points,), "i4"),
            **({"map_order": ("map", (points, atoms), "u2")} if self.model.latents.ordered else {}),
            **({"map_places": ("map", (points, self.model.H, 2), "i4")} if self.model.grid else {}),
            "reconstruction": ("reconstruction", (points, D), "f8"),
            "quality": ("quality", (points,), "f8"),
        }
        return {
            name: (shape, np.dtype(kind)) for name, (asked, shape, kind) in every.items() if asked in self.quantities
        }

    def block(self, Y: np.ndarray, first: int = 0) -> dict[str, np.ndarray]:
        """Infer a block of finite rows Y (n, D); ``first`` is the index of its first row in the data."""
        if Y.shape[1] not in (self.model.D, self.model.width):
            raise UserError(f"data: expected rows of {self.model.D} numbers, found {Y.shape[1]}")
        found = {name: np.zeros(shape, kind) for name, (shape, kind) in self.tables(len(Y)).items()}
        rows = np.arange(len(Y))
        scheme: Scheme | None = self.scheme
        while scheme is not None and len(rows):
            for some in split_rows(rows, scheme.count):
                block, posterior = self._posterior(scheme, Y, some, first)
                if scheme is self.scheme:
                    self._store(block, posterior, some, found)
                if "map" in self.quantities:
                    states = self.step.evaluator.observe(block).best(posterior)
                    found["map"][some] = binary(states, self.model.latents.atoms)
                    found["map_gamma"][some] = scheme.max_active
                    if self.model.latents.ordered:
                        found["map_order"][some] = places_by_atom(states, self.model.latents.atoms)
                    if self.model.grid:
                        found["map_places"][some] = on_grid(states, self.model.H, self.model.grid)
            if "map" not in self.quantities:
                break
            rows = np.flatnonzero(found["map"].sum(1) == found["map_gamma"])
            scheme = self._with_larger_gamma(scheme) if len(rows) else None
        if self._exact is not None:
            for some in split_rows(np.arange(len(Y)), self._exact.count):
                _, whole = self._posterior(self._exact, Y, some, first)
                found["quality"][some] = np.exp(np.minimum(found["quality"][some] - whole.evidence, 0.0))
        return found

    def reconstruct_states(self, Y: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Return the mean (n, D) of points Y given their states (n, g), with the posterior mean of their strengths."""
        view = self.step.evaluator.observe(self.as_block(Y, 0), singletons=True)
        if not isinstance(view, EnumeratingView):
            return self.model.mean(self.params, states)
        given = view.over_listed(np.zeros(len(Y)), states[:, None], Sparse.of(np.ones((len(Y), 1))))
        return view.reconstruct(given)

    def as_block(self, Y: np.ndarray, first: int) -> Block:
        """Return rows (n, D or wider) as a block."""
        return Block(pad_rows(Y[:, : self.model.D]), self.model.D, first)

    def count_full_states(self, found: dict[str, np.ndarray]) -> int:
        """Return the number of MAP states of a block that have gamma active causes, although the model has more."""
        if "map" not in found:
            return 0
        gamma, latents = found["map_gamma"], self.model.latents
        return int(((found["map"].sum(1) == gamma) & (gamma < latents.max_active_of(latents.atoms))).sum())

    def _posterior(self, scheme: Scheme, Y: np.ndarray, rows: np.ndarray, first: int) -> tuple[Block, Posterior]:
        """Return the posterior of some rows of a block; raise UserError if an evidence is not finite."""
        block = Block(pad_rows(Y[rows]), self.model.D, first + int(rows[0]))
        posterior = posterior_of(self.step, scheme, block)
        bad = np.flatnonzero(~np.isfinite(posterior.evidence))
        if len(bad):
            found = posterior.evidence[bad[0]]
            raise UserError(f"point {first + rows[bad[0]]}: expected finite evidence, found {found}")
        return block, posterior

    def _store(self, block: Block, posterior: Any, rows: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Store the quantities of some rows of a block, computed with the scheme of the job."""
        if "evidence" in found:
            found["evidence"][rows] = posterior.evidence
        if "candidates" in found:
            scheme, context = self.scheme, with_round(self.step, 0)
            own = scheme.candidates_of(context, block) if isinstance(scheme, Preselects) else posterior.candidates
            found["candidates"][rows] = own
        for name in ("means", *STRENGTH_QUANTITIES):
            if name in found:
                found[name][rows] = getattr(posterior, name)(self.model.latents.atoms)
        if "reconstruction" in found:
            centred = self.step.evaluator.observe(block).reconstruct(posterior)
            found["reconstruction"][rows] = centred if self.mean is None else centred + self.mean
        if "quality" in found:
            found["quality"][rows] = posterior.evidence  # the evidence of all states is subtracted in ``block``

    def _with_larger_gamma(self, scheme: Scheme) -> Scheme | None:
        """Return the scheme with gamma + 1, cached; None if it has too many states."""
        with self._lock:
            if scheme.max_active not in self._raised:
                more = scheme.extended(self.model.latents, MAX_MAP_STATES) if isinstance(scheme, Extensible) else None
                self._raised[scheme.max_active] = more
            return self._raised[scheme.max_active]


@lru_cache(1)
def exact_scheme_for(latents: Latents) -> Exact:
    """Return the scheme that considers all states."""
    for _, expected, found in ExactOptions().inconsistencies(latents):
        raise UserError(f"quality: expected {expected}, found {found}")
    return Exact(ExactOptions(), latents)


def split_rows(rows: np.ndarray, states: int) -> Iterator[np.ndarray]:
    """Yield the rows in pieces of at most ``MAX_WEIGHTS`` weights, but of at least one SIMD vector of rows."""
    count = max(1, MAX_WEIGHTS // (states * LANES)) * LANES
    for start in range(0, len(rows), count):
        yield rows[start : start + count]
