"""The free energy never falls where nothing but EM changes the parameters: every model, all schemes that promise it."""

from functools import cache
from pathlib import Path
from typing import Literal, get_args, get_origin

import numpy as np
import pytest

from parallel_et import fit
from parallel_et.core.options import keys_of, start_of
from parallel_et.core.terms import Summary
from parallel_et.models import MODELS
from parallel_et.runs.job import check_job
from parallel_et.schemes import SCHEMES
from parallel_et.schemes.tv import Proposals

N, D, H, ITERATIONS = 60, 6, 4, 15
EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = list(Proposals.model_fields)
SEARCH = [{"propose": {kind: 5}} for kind in KINDS] + [{}, {"start": "blind"}, {"start": "prior"}]
TRIED = {
    "exact": [{}],
    "et": [{"candidates": 4, "gamma": 4}],  # where candidates change it promises nothing
    "tv": [{"states": 5, **keys} for keys in SEARCH],
    "hard": SEARCH,
}

DRAWN = {"sample"}
"""Schemes whose posteriors are drawn: their free energy goes up and down by chance."""
KEYS = {"inveca": {"rows": 1, "size": 1}}
"""Keys without which a model is not of these points."""
FEWER = {"mca3", "rmca"}
"""Models that learn fields of fewer states than they consider, as their paper does, which is no EM."""


def models():
    """All that are shipped, each with every value of its own keys, and the examples."""
    for name in sorted(set(MODELS.names()) - set(MODELS.aliases) - FEWER):
        if not MODELS.find(name).can("log_joint"):  # which can only be sampled
            continue
        yield {"name": name, **KEYS.get(name, {})}
        for key, field in MODELS.find(name).Options.model_fields.items():
            if get_origin(field.annotation) is Literal:
                for value in get_args(field.annotation):
                    if value != field.default:
                        yield {"name": name, key: value}
    yield from ({"file": str(EXAMPLES / f"{name}.py")} for name in ("own_model", "ternary"))


def label(model):
    return " ".join(Path(value).stem for value in model.values() if isinstance(value, str))


def job(model, inference):
    return {
        "model": {"causes": H, **model},
        "data": {"source": "array:given"},
        "inference": inference,
        "anneal": {"iterations": ITERATIONS, "temperature": 1.0},
    }


@cache
def data(keys):
    """Points that a model draws around parameters like those that it would begin with."""
    checked = check_job(job(dict(keys), {"scheme": "exact"}))
    model, rng = checked.Model(checked.model, D), np.random.default_rng(7)
    summary = Summary(N, D, 12.0, 4.0, 6.0, 0.0, spread=1.0, heights=np.full(D, 12.0), spreads=np.ones(D))
    params = model.constrain({key: start_of(model, key, summary, rng) for key in model.params})
    return model.draw(params, rng, N)[0]


def test_every_scheme_is_tried():
    assert set(SCHEMES.names()) == set(TRIED) | DRAWN


@pytest.mark.parametrize("scheme", TRIED)
@pytest.mark.parametrize("model", list(models()), ids=label)
def test_the_free_energy_never_falls(model, scheme):
    Y, checked = data(tuple(model.items())), check_job(job(model, {"scheme": "exact"}))
    whole = checked.Model(checked.model, D)
    learned = {**model, "learn": list(whole.params)}
    for keys in TRIED[scheme]:
        if whole.grid and scheme == "et":
            pytest.skip("candidates are places of a cause, of which not all fit")
        inference = {"scheme": scheme, **({"gamma": 3} if scheme in ("tv", "hard") else {}), **keys}
        energy = fit(job(learned, inference), Y).history["free_energy"]
        assert (np.diff(energy) >= -1e-9 * np.abs(energy[:-1])).all(), (keys, energy)
        assert energy[-1] > energy[0]


def test_keys_of_models_are_found():
    assert {"name": "nmf", "mstep": "multiplicative"} in list(models())
    assert keys_of(MODELS.find("nmf")).model_fields["mstep"].default == "clamp"
