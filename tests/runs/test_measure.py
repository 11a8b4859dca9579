import numpy as np
from problems import job_table, params_of, problem_of

from parallel_et.inference.recovery import recovery


def outcome(W, causes):
    table = job_table({"name": "linca", "causes": W.shape[1]}, {"candidates": 2, "gamma": 2})
    problem, _ = problem_of(table, causes.T)
    return recovery(problem.model, problem.scheme, params_of(W, 2.0, 0.2), causes)


CAUSES = 10.0 * np.eye(4)


def test_all_causes_in_any_order_are_found():
    found = outcome(CAUSES[:, [2, 0, 3, 1]] + 0.1, CAUSES)
    assert found.complete
    assert found.unit.tolist() == [1, 3, 0, 2]
    np.testing.assert_allclose(found.mae, 0.1)
    assert str(found) == "all 4 causes found, mean absolute error 0.100"


def test_two_causes_in_one_field_are_not_found():
    W = CAUSES.copy()
    W[:, 1] = W[:, 0] + W[:, 1]
    W[:, 0] = 0.0
    found = outcome(W, CAUSES)
    assert not found.complete
    assert found.found.tolist() == [False, False, True, True]
    assert str(found).startswith("2 of 4 causes found")


def test_a_field_too_far_from_its_cause_does_not_count():
    W = CAUSES.copy()
    W[:, 3] = [0, 0, 0, 5.9]
    assert outcome(W, CAUSES).found.tolist() == [True, True, True, False]
