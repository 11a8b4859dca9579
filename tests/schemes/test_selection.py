"""Candidates by the model, by a regression that is learned, or at random."""

import numpy as np
import pytest
from problems import job_table, problem_of, random_data, random_params, settings_at
from scipy.stats import multivariate_normal

from parallel_et import fit
from parallel_et.core.posterior import Draws, Sparse
from parallel_et.core.scheme import initial_point_states_of
from parallel_et.core.types import Block
from parallel_et.em.e_step import EStep, inference_context
from parallel_et.em.loop import em_step
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import check_job
from parallel_et.kernels.rows import pad_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.memory_demand import demand
from parallel_et.schemes.selection import gp
from parallel_et.schemes.selection.regression import INITIAL_KERNELS, Kernel, choose_pivots, fit_kernel, log_likelihood

N, D, H = 60, 9, 7
KERNELS = ("linear", "rbf", "composed")
ET = {"candidates": 3, "gamma": 2}


def learned(kernel, rank, N=N, every=2, **keys):
    """Return a problem, its state after some iterations, and its data."""
    Y = random_data("linca", N, random_params("linca", D, H, seed=1), seed=2) + 5.0
    own = {"kernel": kernel, "rank": rank, "every": every}
    table = job_table({"name": "linca", "causes": H}, {**ET, "selection": "gp", "gp": own, **keys})
    problem, params = problem_of(table, Y)
    return problem, after_iterations(problem, params), Y


def after_iterations(problem, params):
    """Return the state after some iterations."""
    state = problem.initial_state(params)
    for _ in range(4):
        state, _ = em_step(problem, Ranks(), state, problem.schedule.settings(state))
    return state


def predictions(problem, params, Y, point_states):
    step = inference_context(problem.model, problem.scheme, params)
    return step.selection_evaluator.predict(Block(pad_rows(Y), D, 0), point_states) * params["gp_scale"]


def targets_of(state):
    point_states = state.point_states
    targets = np.zeros((len(point_states["gp_atoms"]), H + 1))  # padding is written to the last column
    np.put_along_axis(targets, point_states["gp_atoms"], point_states["gp_means"].astype(float), 1)
    return targets[:, :H]


def points_of(params, Y):
    return (Y - params["gp_centre"]) / params["gp_state"][0, 0]


def plain_kernel(params, A, B):
    """Return the kernel of all pairs of points, number by number."""
    kernel = gp.kernel_of(params)
    squares = ((A[:, None] - B) ** 2).sum(-1)
    return kernel.linear * A @ B.T + kernel.rbf * np.exp(-squares / (2 * kernel.length**2)) + kernel.bias


@pytest.mark.parametrize("kernel", KERNELS)
def test_predictions_leave_out_the_target_of_each_point(kernel):
    problem, state, Y = learned(kernel, 1000)
    params = state.params
    found = predictions(problem, params, Y, state.point_states)
    Z, targets = points_of(params, Y), targets_of(state)
    K = plain_kernel(params, Z, Z)
    for n in range(N):
        others = np.arange(N) != n
        inner = K[np.ix_(others, others)] + float(params["gp_white"]) * np.eye(N - 1)
        expected = K[n, others] @ np.linalg.solve(inner, targets[others])
        np.testing.assert_allclose(found[n], expected, atol=1e-8)
    inverse = np.linalg.inv(K + float(params["gp_white"]) * np.eye(N))
    by_quotient = targets - (inverse @ targets) / np.diag(inverse)[:, None]
    np.testing.assert_allclose(found, by_quotient, atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("single", [False, True])
def test_of_low_rank_each_is_left_out_as_well(kernel, single, monkeypatch):
    if not single:
        monkeypatch.setattr(gp, "precision", lambda Q, state: np.float64)
    problem, state, Y = learned(kernel, 12)
    params = state.params
    found = predictions(problem, params, Y, state.point_states)
    Z, targets = points_of(params, Y), targets_of(state)
    features = plain_kernel(params, Z, params["gp_pivots"]) @ params["gp_factor"]
    for n in range(N):
        others = features[np.arange(N) != n]
        inner = others.T @ others + float(params["gp_white"]) * np.eye(12)
        expected = features[n] @ np.linalg.solve(inner, others.T @ targets[np.arange(N) != n])
        np.testing.assert_allclose(found[n], expected, atol=2e-3 if single else 1e-8)


def test_predictions_are_ranked_in_units_of_the_root_of_the_mean_of_target_times_prediction():
    problem, state, Y = learned("linear", 20)
    params = state.params
    all_of_them = predictions(problem, params, Y, initial_point_states_of(problem.scheme, N))
    expected = (targets_of(state) * all_of_them).mean(0)
    np.testing.assert_allclose(params["gp_scale"][0] ** 2, expected, rtol=1e-3)
    added = float(params["gp_white"]) * (params["gp_weights"] ** 2).sum(0) / N
    np.testing.assert_allclose(params["gp_scale"][0] ** 2, (all_of_them**2).mean(0) + added, rtol=1e-3)


def test_new_points_are_predicted_by_all_and_infer_selects_by_that():
    problem, state, Y = learned("rbf", 20)
    params = state.params
    new = random_data("linca", 30, random_params("linca", D, H, seed=1), seed=7) + 5.0
    Z, targets = points_of(params, Y), targets_of(state)
    features = plain_kernel(params, Z, params["gp_pivots"]) @ params["gp_factor"]
    inner = features.T @ features + float(params["gp_white"]) * np.eye(20)
    theirs = plain_kernel(params, points_of(params, new), params["gp_pivots"]) @ params["gp_factor"]
    expected = theirs @ np.linalg.solve(inner, features.T @ targets)
    found = predictions(problem, params, new, initial_point_states_of(problem.scheme, 30))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    candidates = Inference(problem.model, problem.scheme, params, ["candidates"]).block(new)["candidates"]
    np.testing.assert_array_equal(candidates, np.sort(np.argsort(-found / params["gp_scale"], 1)[:, :3], 1))


def in_windows(Y, rows, columns, size, channels):
    """Return the windows at all places of images, number by number, (n places, F)."""
    images = Y.reshape(len(Y), rows, columns, channels)
    return np.array(
        [
            [image[(r + i) % rows, (c + j) % columns] for i in range(size) for j in range(size)]
            for image in images
            for r in range(rows)
            for c in range(columns)
        ]
    ).reshape(len(Y) * rows * columns, -1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_where_causes_stand_at_places_each_window_is_left_out(kernel, monkeypatch):
    monkeypatch.setattr(gp, "precision", lambda Q, state: np.float64)
    monkeypatch.setattr(gp, "VALUES_AT_ONCE", 700)  # seven images at a time
    n, rows, columns, size, channels, objects = 30, 3, 4, 2, 2, 3
    Y = np.random.default_rng(3).normal(0.5, 1.0, (n, rows * columns * channels))
    model = {"name": "inveca", "causes": objects, "size": size, "rows": rows, "channels": channels}
    own = {"kernel": kernel, "rank": 8, "every": 2, "first": "own"}
    problem, params = problem_of(
        job_table({**model, "learn": ["W", "T"]}, {**ET, "candidates": 2, "selection": "gp", "gp": own}), Y
    )
    state = after_iterations(problem, params)
    params = state.params
    step, block = inference_context(problem.model, problem.scheme, params), Block(pad_rows(Y), Y.shape[1], 0)
    found = step.selection_evaluator.predict(block, state.point_states).reshape(-1, objects) * params["gp_scale"]
    windows = points_of(params, in_windows(Y, rows, columns, size, channels))
    targets = np.zeros((n, rows * columns * objects + 1))
    np.put_along_axis(targets, state.point_states["gp_atoms"], state.point_states["gp_means"].astype(float), 1)
    targets = targets[:, :-1].reshape(-1, objects)
    assert (targets.sum(0) > 1).all()
    features = plain_kernel(params, windows, params["gp_pivots"]) @ params["gp_factor"]
    white = float(params["gp_white"]) * np.eye(features.shape[1])
    for m in range(len(windows)):
        others = np.arange(len(windows)) != m
        inner = features[others].T @ features[others] + white
        expected = features[m] @ np.linalg.solve(inner, features[others].T @ targets[others])
        np.testing.assert_allclose(found[m], expected, atol=1e-8)
    predicted = (
        step.selection_evaluator.predict(block, initial_point_states_of(problem.scheme, n)).reshape(-1, objects)
        * params["gp_scale"]
    )
    weights = np.linalg.solve(features.T @ features + white, features.T @ targets)
    np.testing.assert_allclose(predicted, features @ weights, atol=1e-8)
    scores = (found / params["gp_scale"]).reshape(n, -1, objects)
    atoms = scores.argmax(1) * objects + np.arange(objects)  # the best place of each object
    best = np.argsort(-scores.max(1), 1)[:, :2]
    candidates = problem.scheme.selection.select(step, step.evaluator.observe(block), state.point_states, 2)
    np.testing.assert_array_equal(candidates, np.sort(np.take_along_axis(atoms, best, 1), 1))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_likelihood_of_a_kernel_and_its_slope(kernel):
    rng = np.random.default_rng(3)
    Z, targets = rng.normal(size=(15, 3)), rng.random((15, 4))
    squares = ((Z[:, None] - Z) ** 2).sum(-1)
    old = INITIAL_KERNELS[kernel]
    free = [i for i, value in enumerate(old) if value]
    logs = np.log([old[i] for i in free]) + 0.1 * rng.normal(size=len(free))
    now = old._replace(**{Kernel._fields[i]: np.exp(x) for i, x in zip(free, logs, strict=True)})
    value, slope = log_likelihood(logs, free, old, (Z @ Z.T, squares), targets)
    expected = sum(multivariate_normal(cov=now.between(Z, Z) + now.white * np.eye(15)).logpdf(t) for t in targets.T)
    assert value == pytest.approx(expected, rel=1e-9)
    for i, step in enumerate(1e-5 * np.eye(len(free))):
        up, down = (log_likelihood(logs + sign * step, free, old, (Z @ Z.T, squares), targets)[0] for sign in (1, -1))
        assert slope[i] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-6)


def test_a_fit_raises_the_likelihood_within_its_limits():
    rng = np.random.default_rng(4)
    Z = rng.normal(size=(40, 2))
    for targets, length in ((np.sin(9 * Z), 0.2), (np.ones((40, 3)), 5.0)):
        kernel = fit_kernel(INITIAL_KERNELS["rbf"], Z, targets + 0.01 * rng.normal(size=targets.shape))
        assert 0.2 <= kernel.length <= 5.0
        assert abs(kernel.length - length) < 0.5 * length
        assert kernel.linear == kernel.bias == 0.0


def test_each_pivot_is_the_point_that_those_before_it_explain_least():
    Z = np.random.default_rng(5).normal(size=(30, 3))
    kernel = INITIAL_KERNELS["composed"]
    taken, inverse = choose_pivots(kernel, Z, 8, 1e-12)
    K = kernel.between(Z, Z)
    for k, p in enumerate(taken.tolist()):
        before = taken[:k]
        explained = K[:, before] @ np.linalg.solve(K[np.ix_(before, before)], K[before]) if k else np.zeros_like(K)
        left = np.diag(K - explained)
        assert left[p] == pytest.approx(left.max(), rel=1e-9)
    np.testing.assert_allclose(inverse @ inverse.T, np.linalg.inv(K[np.ix_(taken, taken)]), rtol=1e-6)
    assert (
        len(choose_pivots(INITIAL_KERNELS["linear"], Z, 8, 1e-12)[0]) == 3
    )  # a product of three dimensions has no more


def test_the_kernel_is_fitted_every_so_often_and_never_after_the_first_iteration():
    Y = random_data("linca", N, random_params("linca", D, H, seed=1), seed=2)
    inference = {**ET, "selection": "gp", "gp": {"kernel": "rbf", "rank": 20, "every": 3}}
    lengths = fit(job_table({"name": "linca", "causes": H}, inference, {"iterations": 8}), Y).history["gp_length"]
    assert (np.flatnonzero(np.diff(lengths)) + 1).tolist() == [2, 5]
    assert lengths[0] == 1.0
    often = {**inference, "gp": {"kernel": "rbf", "rank": 20, "every": 1}}
    lengths = fit(job_table({"name": "linca", "causes": H}, often, {"iterations": 3}), Y).history["gp_length"]
    assert lengths[0] == 1.0 != lengths[1]


def test_random_candidates_are_others_in_every_iteration_and_spread_evenly():
    Y = np.ones((2000, D))
    table = job_table({"name": "linca", "causes": H}, {**ET, "selection": "random"})
    problem, params = problem_of(table, Y)
    seen = []
    for iteration in range(2):
        state, settings = problem.initial_state(params), settings_at(problem, iteration, params)
        EStep(problem, Ranks(), state, settings, read_only=True).visit(
            lambda part, thread, block, posterior: seen.append(posterior.candidates)
        )
    first, second = np.concatenate(seen)[:2000], np.concatenate(seen)[2000:]
    assert (np.diff(first, axis=1) > 0).all()
    assert (first != second).any(1).mean() > 0.9
    shares = np.bincount(first.ravel(), minlength=H) / 2000
    assert np.abs(shares - 3 / H).max() < 5 * np.sqrt(3 / H * (1 - 3 / H) / 2000)


def test_where_all_are_candidates_nothing_is_learned():
    table = job_table({"name": "linca", "causes": 3}, {**ET, "selection": "gp"})
    _, params = problem_of(table, np.ones((40, D)))
    assert not [name for name in params if name.startswith("gp")]


def test_equal_points_are_accepted():
    table = job_table({"name": "linca", "causes": H}, {**ET, "selection": "gp", "gp": {"every": 1}})
    result = fit(table, np.ones((40, D)))
    assert np.isfinite(result.history["free_energy"]).all()


def test_an_atom_is_active_whatever_its_value():
    states = np.array([[[0, 2], [1, -1]]], np.int32)
    values = np.array([[[5.0, -3.0], [2.0, 0.0]]])
    draws = Draws(np.zeros(1), states, Sparse.of(np.array([[0.25, 0.75]])), values)
    np.testing.assert_allclose(draws.active(3), [[0.25, 0.75, 0.25]])
    np.testing.assert_allclose(draws.means(3), [[1.25, 1.5, -0.75]])


@pytest.mark.parametrize(
    "inference, line",
    [
        ({**ET, "selection": "best"}, "inference.selection: expected 'own', 'gp' or 'random', found \"best\""),
        ({"scheme": "exact", "selection": "gp"}, "inference.selection: unknown key"),
        ({**ET, "gp": {"kernel": "cubic"}}, "inference.gp.kernel: expected 'linear', 'rbf' or 'composed'"),
        ({**ET, "gp": {"rank": 0}}, "inference.gp.rank: expected a value of 1 or more, found 0"),
        ({**ET, "gp": {"every": 0}}, "inference.gp.every: expected a value of 1 or more, found 0"),
        ({**ET, "gp": {"ranks": 9}}, "inference.gp.ranks: unknown key, did you mean rank?"),
    ],
)
def test_an_invalid_key_is_refused_in_one_line(inference, line):
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        check_job(job_table({"name": "linca", "causes": H}, inference))
    assert line in str(error.value)


def test_the_memory_of_a_learned_selection_is_counted():
    Y = np.ones((N, D))
    plain, gp = (
        problem_of(job_table({"name": "linca", "causes": H}, {**ET, **keys}), Y)[0]
        for keys in ({}, {"selection": "gp"})
    )
    small, large = (demand(one.model, one.scheme, N, N, 8 * D, 1) for one in (plain, gp))
    assert large.work - small.work >= 16 * (2 * N * H + N * N + N * (D + H))


def test_batches_are_refused_in_a_line():
    table = job_table({"name": "linca", "causes": H}, {**ET, "selection": "gp"}, {"batch": 20})
    with pytest.raises(
        UserError, match=r"anneal\.batch: expected all points in each iteration for a trainable selection"
    ):
        fit(table, np.ones((40, D)))
