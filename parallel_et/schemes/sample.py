"""Select and sample: Gibbs sampling over the candidates of each point (TH ch. 2)."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.gibbs import Samples, Sweeps
from parallel_et.core.latent_states import Latents
from parallel_et.core.posterior import Posterior
from parallel_et.core.schema import MAX_COUNT
from parallel_et.core.scheme import Context, Scheme, initial_point_states_of
from parallel_et.core.types import Block, PointStates
from parallel_et.kernels import gibbs  # noqa: F401  declares the kernels that sample linear models
from parallel_et.schemes.selection.candidates import SelectingOptions, select_candidates
from parallel_et.schemes.selection.choose import selection_of

MAX_SAMPLES = 1 << 24
"""Largest number of samples per point."""
MAX_CHAINS = 1 << 12
"""Largest number of chains per point."""


class SampleOptions(SelectingOptions):
    """The keys of [inference] for sample."""

    scheme: str = Field("sample", description="Gibbs sampling over preselected causes")
    candidates: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="number of preselected causes that are sampled, H'; by default all causes"
    )
    random: int = Field(
        2,
        ge=0,
        le=MAX_COUNT,
        description="number of candidates that are drawn at random, unless all causes are sampled",
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=MAX_SAMPLES,
        description="number of draws of single causes per point, over all chains; by default 200 per candidate",
    )
    chains: int = Field(20, ge=1, le=MAX_CHAINS, description="number of chains per point; multiples of 8 are fastest")
    burn_in: float = Field(
        1 / 3,
        ge=0,
        lt=1,
        description="fraction of the sweeps of a chain that are discarded; at least one sweep, unless 0",
    )

    weights: Literal["draws", "joint"] = Field(
        "draws", description="weight of a distinct state: its number of draws, or its joint probability as in et"
    )

    def inconsistencies(self, latents: Latents) -> list[tuple[str, str, object]]:
        wrong: list[tuple[str, str, object]] = []
        if latents.ordered or latents.min_active > 1:
            wrong.append(
                ("scheme", "a model whose states are sets of any size, the order of which does not count", self.scheme)
            )
        if self.candidates is not None:
            if self.candidates > latents.atoms:
                wrong.append(("candidates", f"at most {latents.description}", self.candidates))
            elif self.random >= self.candidates:
                wrong.append(("random", f"less than inference.candidates = {self.candidates}", self.random))
        return wrong


class SelectAndSample(Scheme):
    """Inference with q_n from Gibbs samples: the states at the ends of all sweeps after the burn-in.

    F_n is log of the sum of p over the distinct states at the ends of all sweeps, a lower bound as for any K_n.
    """

    Options: ClassVar[type[SelectingOptions]] = SampleOptions
    needs = (Samples,)
    draws = True

    def __init__(self, options: Any, latents: Latents) -> None:
        self.sampled = options.candidates or latents.atoms
        self.random = options.random if self.sampled < latents.atoms else 0
        self.selection = selection_of(options, latents, self.sampled)
        self.chains, self.joint = options.chains, options.weights == "joint"
        self.max_active, self.candidates = latents.max_active_of(self.sampled), self.sampled
        samples = options.samples or 200 * self.sampled
        self.sweeps = -(-samples // (self.chains * self.sampled))
        forgotten = max(1, int(options.burn_in * self.sweeps)) if options.burn_in > 0 else 0
        self.burn = min(self.sweeps - 1, forgotten)
        self.count = self.sweeps * self.chains * self.sampled
        self.description = (
            f"{self.count} samples per point, in {self.chains} chains of {self.sweeps} sweeps over "
            f"{self.sampled} causes" + f" ({self.random} of them at random)" * bool(self.random)
        )

    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        context.phase("select")
        view = context.evaluator.observe(block)
        assert isinstance(view, Samples)
        candidates = select_candidates(self.selection, context, view, point_states, self.sampled, self.random)
        context.phase("states")
        sweeps = Sweeps(self.sweeps, self.burn, self.chains, context.random, block.first, self.joint)
        return view.sample(candidates, sweeps, context.beta), point_states

    def candidates_of(self, context: Context, block: Block) -> np.ndarray:
        view, states = context.evaluator.observe(block), initial_point_states_of(self, len(block))
        return select_candidates(self.selection, context, view, states, self.sampled, self.random)


SCHEME = SelectAndSample
