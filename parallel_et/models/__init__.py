"""One file a model; a new file in here is found by its name. What they share is in ``parts``."""

from parallel_et.core.contract import UNUSED, Knobs, Model, Param, Params, Sum, Summary, Totals
from parallel_et.core.options import ModelOptions
from parallel_et.core.registry import Registry
from parallel_et.core.states import Latents, binary
from parallel_et.core.terms import Rule
from parallel_et.models.parts.fields import sums_by_atom, with_none
from parallel_et.models.parts.noises import SIGMA, Binary, Gauss, Poisson
from parallel_et.models.parts.priors import PI, Bernoulli, Categorical
from parallel_et.models.parts.solve import solve_fields

__all__ = [
    "MODELS",
    "PI",
    "SIGMA",
    "UNUSED",
    "Bernoulli",
    "Binary",
    "Categorical",
    "Gauss",
    "Knobs",
    "Latents",
    "Model",
    "ModelOptions",
    "Param",
    "Params",
    "Poisson",
    "Rule",
    "Sum",
    "Summary",
    "Totals",
    "binary",
    "solve_fields",
    "sums_by_atom",
    "with_none",
]

MODELS = Registry(__name__, "MODEL", Model, {"bsc": "linca"})
