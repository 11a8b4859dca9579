"""The estimator of scikit-learn: the checks of scikit-learn for every model, and all methods."""

import pickle

import numpy as np
import pytest
from mpi4py import MPI
from problems import random_data, random_params
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from parallel_et.models import MODELS
from parallel_et.sklearn import MultipleCauses

OPTIONS = {
    "inveca": {"options": {"channels": 1, "rows": 1, "size": 1}},
    "noisyor": {"binarize": 0.0},
    "oca": {"options": {"channels": 1}},
    "rmca": {"options": {"total": 3.0}},
}
MORE = [("mca", {"noise": "poisson"}), ("gmm", {"covariance": "full"})]


@pytest.mark.parametrize("model, options", [(name, None) for name in MODELS.names() if name != "bsc"] + MORE)
def test_scikit_learn_finds_nothing_wrong(model, options):
    estimator = MultipleCauses(model, 3, max_iter=3, **({"options": options} if options else OPTIONS.get(model, {})))
    checks = check_estimator(estimator, on_skip=None)
    assert [check["check_name"] for check in checks if check["status"] != "passed"] == ["check_array_api_input"]


@pytest.fixture(scope="module")
def points():
    params = random_params("linca", 9, 4, seed=1)
    return random_data("linca", 400, params, seed=2)


def test_a_linear_model_decodes_what_it_encodes(points):
    learned = MultipleCauses("linca", 4, max_iter=20, random_state=1, centre=True).fit(points)
    means = learned.transform(points)
    np.testing.assert_allclose(learned.inverse_transform(means), learned.reconstruct(points), atol=1e-12)
    np.testing.assert_allclose(learned.result_.data["mean"], points.mean(0), atol=1e-12)
    assert learned.components_.shape == (4, 9)
    assert learned.get_feature_names_out().tolist() == [f"multiplecauses{h}" for h in range(4)]


def test_nonlinear_models_decode_the_most_probable_state(points):
    learned = MultipleCauses("mca", 4, max_iter=5, random_state=1).fit(np.abs(points))
    states = learned.result_.map_states(np.abs(points))
    tops = np.where(states[:, :, None] > 0, learned.components_, 0.0).max(1)
    np.testing.assert_array_equal(learned.inverse_transform(states), tops)


def test_the_score_is_the_mean_evidence_and_samples_have_the_shape_of_points(points):
    learned = MultipleCauses("nmf", 3, max_iter=5, random_state=1).fit(np.abs(points))
    assert learned.score(np.abs(points)) == learned.score_samples(np.abs(points)).mean()
    drawn, states = learned.sample(7)
    assert drawn.shape == (7, 9)
    assert states.shape == (7, 3)


def test_a_grid_search_over_a_pipeline_finds_the_number_of_causes(points):
    steps = make_pipeline(StandardScaler(), MultipleCauses(max_iter=10, random_state=1))
    search = GridSearchCV(clone(steps), {"multiplecauses__n_components": [1, 4]}, cv=2).fit(points)
    assert search.best_params_ == {"multiplecauses__n_components": 4}
    assert search.best_estimator_.transform(points).shape == (400, 4)


def test_a_mistake_in_its_parameters_is_a_value_error(points):
    with pytest.raises(ValueError, match=r"model\.name: expected .* did you mean linca"):
        MultipleCauses("linka").fit(points)


def test_batches_without_memory_are_iterations_of_fit(points):
    options = {"max_iter": 5, "random_state": 1, "centre": True, "anneal": {"step": {"power": 0.0}}}
    online = MultipleCauses("linca", 4, **options)
    for _ in range(5):
        online.partial_fit(points)
    np.testing.assert_allclose(online.components_, MultipleCauses("linca", 4, **options).fit(points).components_)
    assert online.n_iter_ == len(online.result_.history["free_energy"]) == 5
    assert online.result_.metadata["N"] == 2000


def test_the_statistics_of_batches_are_averaged_whatever_their_sizes(points):
    learner = MultipleCauses("linca", 4, max_iter=5, random_state=1)
    first = pickle.loads(pickle.dumps(learner.partial_fit(points[:300])))
    active = [clone(learner).set_params(max_iter=1).fit(points[:300]).result_.params["pi"] * 4]
    active.append(first.transform(points[300:]).sum(1).mean())
    step = 2**-0.6
    second = first.partial_fit(points[300:])
    np.testing.assert_allclose(second.result_.params["pi"] * 4, (1 - step) * active[0] + step * active[1])


def test_partial_fit_continues_from_fit(points):
    learner = MultipleCauses("nmf", 4, max_iter=20, random_state=1, anneal={"temperature": [[0.0, 9.0], [0.8, 1.0]]})
    whole = learner.fit(np.abs(points)).score(np.abs(points))
    assert learner.partial_fit(np.abs(points)).score(np.abs(points)) >= whole
    assert learner.n_iter_ == 21


def test_a_scheme_that_revisits_points_refuses_batches(points):
    with pytest.raises(ValueError, match=r"batches: expected .* found inference.scheme = tv"):
        MultipleCauses("linca", 4, inference={"scheme": "tv", "states": 5, "gamma": 4}).partial_fit(points)


@pytest.mark.mpi
def test_batches_give_the_same_bits_on_any_number_of_ranks(points):
    found = []
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        learner = MultipleCauses("linca", 4, max_iter=5, random_state=1, centre=True, comm=comm)
        for batch in np.split(points, 4):
            learner.partial_fit(batch)
        found.append({name: value.tobytes() for name, value in learner.result_.params.items()})
    assert found[0] == found[1]
