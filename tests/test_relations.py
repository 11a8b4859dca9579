"""All relations of each model and scheme for one seed. ``tests/relations.py`` runs many seeds."""

import every
import pytest
from judge import JUDGES, WITHOUT
from metamorphic import schemes_of
from noise import FACTORS, judged
from relations import tried


@pytest.mark.parametrize(
    "model, scheme",
    [
        pytest.param(model, scheme, id=f"{every.label(model)}-{scheme}")
        for model in every.models()
        for scheme in schemes_of(model)
    ],
)
def test_learned_parameters_follow_changes_of_data_and_initial_values(model, scheme):
    outcomes = list(tried(model, scheme, seed=0))
    assert outcomes
    assert not [str(one) for one in outcomes if one.broken]


@pytest.mark.parametrize("model", list(every.models()), ids=every.label)
def test_no_error_is_silent_for_any_noise(model):
    name = model.get("name", every.label(model))
    assert (name in JUDGES) != (name in WITHOUT)
    assert not [str(one) for one in judged(model, 0, FACTORS[::3]) if one.word == "silent"]
