"""Select and sample: Gibbs sampling over the candidates of each point (TH ch. 2)."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from parallel_et.core.gibbs import Samples, Sweeps
from parallel_et.core.latent_states import Latents
from parallel_et.core.posterior import Posterior
from parallel_et.core.schema import MOST
from parallel_et.core.scheme import Context, Scheme, vacant_point_states
from parallel_et.core.types import Block, PointStates
from parallel_et.kernels import gibbs  # noqa: F401  linear models sample by it
from parallel_et.schemes.selection.candidates import SelectingOptions, chosen
from parallel_et.schemes.selection.choose import selection_of

MOST_SAMPLES = 1 << 24
"""Samples of a point."""
MOST_CHAINS = 1 << 12


class SampleOptions(SelectingOptions):
    """The keys of [inference] for sample."""

    scheme: str = Field("sample", description="Gibbs sampling over preselected causes")
    candidates: int | None = Field(
        None, ge=1, le=MOST, description="causes of a point that are sampled, H'; by default all"
    )
    random: int = Field(2, ge=0, le=MOST, description="how many of them are drawn at random, where not all are sampled")
    samples: int | None = Field(
        None,
        ge=1,
        le=MOST_SAMPLES,
        description="times that a cause of a point is drawn, in all its chains; by default 200 for each candidate",
    )
    chains: int = Field(20, ge=1, le=MOST_CHAINS, description="chains of a point; a multiple of 8 is most economical")
    burn_in: float = Field(
        1 / 3,
        ge=0,
        lt=1,
        description="share of a chain's samples that are forgotten; of two sweeps or more at least one, unless it is 0",
    )

    weights: Literal["draws", "joint"] = Field(
        "draws", description="a state that was drawn counts as often as that, or once, by its joint, as in et"
    )

    def mistakes(self, latents: Latents) -> list[tuple[str, str, object]]:
        wrong: list[tuple[str, str, object]] = []
        if latents.ordered or latents.least > 1:
            wrong.append(
                ("scheme", "a model whose states are sets of any size, the order of which does not count", self.scheme)
            )
        if self.candidates is not None:
            if self.candidates > latents.atoms:
                wrong.append(("candidates", f"at most {latents.words}", self.candidates))
            elif self.random >= self.candidates:
                wrong.append(("random", f"less than inference.candidates = {self.candidates}", self.random))
        return wrong


class SelectAndSample(Scheme):
    """q_n by states that were drawn: the ends of all sweeps over the candidates but for the first, which are forgotten.

    F_n is the log of the sum of p over the distinct ones among the ends of all sweeps: a bound, as for any K_n.
    """

    Options: ClassVar[type[SelectingOptions]] = SampleOptions
    needs = (Samples,)
    draws = True

    def __init__(self, options: Any, latents: Latents) -> None:
        self.sampled = options.candidates or latents.atoms
        self.random = options.random if self.sampled < latents.atoms else 0
        self.selection = selection_of(options, latents, self.sampled)
        self.chains, self.joint = options.chains, options.weights == "joint"
        self.most, self.candidates = latents.most_of(self.sampled), self.sampled
        samples = options.samples or 200 * self.sampled
        self.sweeps = -(-samples // (self.chains * self.sampled))
        forgotten = max(1, int(options.burn_in * self.sweeps)) if options.burn_in > 0 else 0
        self.burn = min(self.sweeps - 1, forgotten)
        self.count = self.sweeps * self.chains * self.sampled
        self.words = (
            f"{self.count} samples a point, in {self.chains} chains of {self.sweeps} sweeps over {self.sampled} causes"
            + f" ({self.random} of them at random)" * bool(self.random)
        )

    def infer(self, context: Context, block: Block, point_states: PointStates) -> tuple[Posterior, PointStates]:
        context.phase("select")
        view = context.evaluator.observe(block)
        assert isinstance(view, Samples)
        candidates = chosen(self.selection, context, view, point_states, self.sampled, self.random)
        context.phase("states")
        sweeps = Sweeps(self.sweeps, self.burn, self.chains, context.random, block.first, self.joint)
        return view.sample(candidates, sweeps, context.beta), point_states

    def candidates_of(self, context: Context, block: Block) -> np.ndarray:
        view, states = context.evaluator.observe(block), vacant_point_states(self, len(block))
        return chosen(self.selection, context, view, states, self.sampled, self.random)


SCHEME = SelectAndSample
