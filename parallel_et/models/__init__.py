"""One file a model; a new file in here is found by its name. What they share is in ``parts``."""

from parallel_et.core.latent_states import Latents, binary
from parallel_et.core.model import UNUSED, BlockView, EnumeratingView, Evaluator, Model
from parallel_et.core.options import ModelOptions
from parallel_et.core.registry import Registry
from parallel_et.core.types import Param, Params, Rule, Settings, Statistic, Summary, Totals, largest, largest_square
from parallel_et.models.components.fields import divided, sums_by_atom, with_none
from parallel_et.models.components.noises import SIGMA, Binary, Gauss, Poisson
from parallel_et.models.components.priors import PI, Bernoulli, Categorical

__all__ = [
    "MODELS",
    "PI",
    "SIGMA",
    "UNUSED",
    "Bernoulli",
    "Binary",
    "BlockView",
    "Categorical",
    "EnumeratingView",
    "Evaluator",
    "Gauss",
    "Latents",
    "Model",
    "ModelOptions",
    "Param",
    "Params",
    "Poisson",
    "Rule",
    "Settings",
    "Statistic",
    "Summary",
    "Totals",
    "binary",
    "divided",
    "largest",
    "largest_square",
    "sums_by_atom",
    "with_none",
]

MODELS = Registry(__name__, "MODEL", Model, {"bsc": "linca"})
