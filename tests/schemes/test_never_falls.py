"""The free energy never falls where nothing but EM changes the parameters: every model, all schemes that promise it."""

import numpy as np
import pytest
from every import build, data, examples, job, label, names, variants

from parallel_et import fit
from parallel_et.core.model import EnumeratingView
from parallel_et.core.options import keys_of
from parallel_et.models import MODELS
from parallel_et.schemes import SCHEMES
from parallel_et.schemes.tv import Proposals

N, ITERATIONS = 60, 15
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
FEWER = {"mca3", "rmca"}
"""Models that learn fields of fewer states than they consider, as their paper does, which is no EM."""


def models():
    """All that are shipped, each with every value of its own keys, and the examples."""
    for name in sorted(set(names()) - FEWER):
        if issubclass(MODELS.find(name).View, EnumeratingView):  # others can only be sampled
            yield from variants(name)
    yield from examples()


def test_every_scheme_is_tried():
    assert set(SCHEMES.names()) == set(TRIED) | DRAWN


@pytest.mark.parametrize("scheme", TRIED)
@pytest.mark.parametrize("model", list(models()), ids=label)
def test_the_free_energy_never_falls(model, scheme):
    Y, whole = data(tuple(model.items()), N), build(model)
    learned = {**model, "learn": list(whole.params)}
    for keys in TRIED[scheme]:
        if whole.grid and scheme == "et":
            pytest.skip("candidates are places of a cause, of which not all fit")
        inference = {"scheme": scheme, **({"gamma": 3} if scheme in ("tv", "hard") else {}), **keys}
        energy = fit(job(learned, inference, iterations=ITERATIONS), Y).history["free_energy"]
        assert (np.diff(energy) >= -1e-9 * np.abs(energy[:-1])).all(), (keys, energy)
        assert energy[-1] > energy[0]


def test_keys_of_models_are_found():
    assert {"name": "nmf", "mstep": "multiplicative"} in list(models())
    assert keys_of(MODELS.find("nmf")).model_fields["mstep"].default == "clamp"
