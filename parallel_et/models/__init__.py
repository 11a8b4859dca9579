"""Generative models, one file each. A job finds a model by its file name; ``components`` contains shared code."""

from parallel_et.core.latent_states import Latents, binary
from parallel_et.core.model import UNUSED, BlockView, EnumeratingView, Evaluator, Model
from parallel_et.core.options import ModelOptions
from parallel_et.core.registry import Registry
from parallel_et.core.types import Param, Params, Rule, Settings, Statistic, Summary, Totals, largest, largest_square
from parallel_et.models.components.fields import divide_or_keep, sums_by_atom, with_empty_row
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
    "divide_or_keep",
    "largest",
    "largest_square",
    "sums_by_atom",
    "with_empty_row",
]

MODELS = Registry(__name__, "MODEL", Model, {"bsc": "linca"})
