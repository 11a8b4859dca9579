"""All relations of each model and scheme for one seed. ``tests/support/relations.py`` runs many seeds."""

import every_model
import pytest
from long_double import JUDGES, WITHOUT
from metamorphic import schemes_of
from noise_levels import FACTORS, judged
from relations import tried


@pytest.mark.parametrize(
    "model, scheme",
    [
        pytest.param(model, scheme, id=f"{every_model.label(model)}-{scheme}")
        for model in every_model.models()
        for scheme in schemes_of(model)
    ],
)
def test_learned_parameters_follow_changes_of_data_and_initial_values(model, scheme):
    outcomes = list(tried(model, scheme, seed=0))
    assert outcomes
    assert not [str(one) for one in outcomes if one.broken]


@pytest.mark.parametrize("model", list(every_model.models()), ids=every_model.label)
def test_no_error_is_silent_for_any_noise(model):
    name = model.get("name", every_model.label(model))
    assert (name in JUDGES) != (name in WITHOUT)
    assert not [str(one) for one in judged(model, 0, FACTORS[::3]) if one.word == "silent"]
