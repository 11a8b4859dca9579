"""InvECA against its definition: sums over all placed and ordered objects, and over all masks."""

from itertools import permutations, product

import numpy as np
import pytest
from problems import iterate, job_table, problem_of, settings_at
from scipy.special import gammaln, logsumexp

from parallel_et import fit
from parallel_et.core.types import Block
from parallel_et.em.e_step import inference_context
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.components.windows import typical_windows
from parallel_et.parallel.communicator import Ranks

SIDE, SIZE, CHANNELS, H, N = 3, 2, 2, 2, 3
PLACES, INSIDE = SIDE**2, SIZE**2
EXACT = {"scheme": "exact"}


def some_params(seed=3):
    rng = np.random.default_rng(seed)
    return {
        "W": rng.uniform(0.1, 0.95, (INSIDE, H)),
        "T": rng.normal(0.5, 1.0, (INSIDE * CHANNELS, H)),
        "sigma": np.array(0.7),
        "pi": np.array([0.3, 0.6]),
    }


def points(seed=4):
    return np.random.default_rng(seed).normal(0.4, 1.0, (N, PLACES * CHANNELS))


def states_of(most=H):
    """Return all lists of (object, row, column), farthest first, with each object at most once."""
    where = list(product(range(SIDE), range(SIDE)))
    return [
        [(h, *x) for h, x in zip(order, xs, strict=True)]
        for g in range(most + 1)
        for order in permutations(range(H), g)
        for xs in product(where, repeat=g)
    ]


def everything(params, state, y):
    """Return the log joint of a state, and p(pixel d shows layer l | s, y), by enumerating the masks of a pixel."""
    pi, sigma = params["pi"], params["sigma"]
    W, T = params["W"].reshape(SIZE, SIZE, H), params["T"].reshape(SIZE, SIZE, CHANNELS, H)
    there = [h for h, _, _ in state]
    log = sum(np.log(pi[h] if h in there else 1 - pi[h]) for h in range(H))
    log -= len(state) * np.log(PLACES) + gammaln(len(state) + 1)
    shows = np.zeros((len(state), SIDE, SIDE))
    for r, c in product(range(SIDE), repeat=2):
        over = [(n, (r - top) % SIDE, (c - left) % SIDE, h) for n, (h, top, left) in enumerate(state)]
        over = [(n, i, j, h) for n, i, j, h in over if i < SIZE and j < SIZE]
        total = 0.0
        for bits in product([0, 1], repeat=len(over)):
            p, mean, layer = 1.0, np.zeros(CHANNELS), None
            for bit, (n, i, j, h) in zip(bits, over, strict=True):
                p *= W[i, j, h] if bit else 1 - W[i, j, h]
                mean, layer = (T[i, j, :, h], n) if bit else (mean, layer)
            gap = y.reshape(SIDE, SIDE, CHANNELS)[r, c] - mean
            p *= np.exp(-0.5 * gap @ gap / sigma**2) / (2 * np.pi * sigma**2) ** (CHANNELS / 2)
            total += p
            if layer is not None:
                shows[layer, r, c] += p
        shows[:, r, c] /= total
        log += np.log(total)
    return log, shows


@pytest.fixture(scope="module")
def judged():
    """Parameters, points, states, and for each point the log joints and visibilities of all states, by enumeration."""
    params, Y, states = some_params(), points(), states_of()
    found = [[everything(params, s, y) for s in states] for y in Y]
    return params, Y, states, np.array([[f for f, _ in row] for row in found]), [[s for _, s in row] for row in found]


def model_job(scheme=None, learn=("W", "T", "sigma", "pi"), **anneal):
    model = {"name": "inveca", "causes": H, "size": SIZE, "channels": CHANNELS, "each": ["pi"], "learn": list(learn)}
    return job_table(model, scheme or EXACT, {"iterations": 1, **anneal})


def atoms_of(state):
    return [h + H * (top * SIDE + left) for h, top, left in state]


def padded_states(states):
    listed = np.full((len(states), H), -1, np.int32)
    for row, state in zip(listed, states, strict=True):
        row[: len(state)] = atoms_of(state)
    return listed


def problem_at_rest(params, scheme=None):
    problem, _ = problem_of(model_job(scheme), points())
    return problem, inference_context(problem.model, problem.scheme, params)


def test_the_joint_of_every_placed_and_ordered_state_is_that_over_all_masks(judged):
    params, Y, states, logs, _ = judged
    problem, step = problem_at_rest(params)
    listed = padded_states(states)
    view = step.evaluator.observe(Block(pad_rows(Y), problem.model.D, 0))
    each = np.tile(listed, (N, 1, 1))
    np.testing.assert_allclose(view.log_joint(each), logs, rtol=0, atol=1e-10)
    np.testing.assert_allclose(step.evaluator.log_joint(Y[:, None], listed), logs, rtol=0, atol=1e-10)
    single = [k for k, s in enumerate(states) if len(s) == 1]
    alone = view.log_singletons()[:, listed[single, 0]]
    np.testing.assert_allclose(alone, logs[:, single], rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_evidence_and_weights_are_those_of_all_states(judged, temperature):
    params, Y, states, logs, _ = judged
    problem, _ = problem_of(model_job(temperature=temperature), Y)
    settings = settings_at(problem, 0, params)
    evaluator = problem.model.evaluator(params, settings)
    orders = gammaln(np.array([len(s) for s in states]) + 1.0)
    hot = (logs + orders) / temperature - orders
    step = inference_context(problem.model, problem.scheme, params)._replace(evaluator=evaluator, beta=1 / temperature)
    posterior, _ = problem.scheme.infer(step, Block(pad_rows(Y), problem.model.D, 0), {})
    np.testing.assert_allclose(posterior.evidence, logsumexp(hot, 1), rtol=0, atol=1e-10)
    point, found, q = posterior.pairs(np.ones(N, bool))
    weight = {(n, *[a for a in s if a >= 0]): w for n, s, w in zip(point.tolist(), found.tolist(), q, strict=True)}
    for n in range(N):
        for s, expected in zip(states, np.exp(hot[n] - logsumexp(hot[n])), strict=True):
            assert weight.get((n, *atoms_of(s)), 0.0) == pytest.approx(expected, abs=1e-10)


def sums_by_masks(judged):
    """Return the sums over states and masks of shown pixels, transparent pixels, shown pixels times y, and objects."""
    _, Y, states, logs, shows = judged
    shown, passed = np.zeros((2, H, SIZE, SIZE))
    numerator, active = np.zeros((H, SIZE, SIZE, CHANNELS)), np.zeros(H)
    for n, y in enumerate(Y.reshape(N, SIDE, SIDE, CHANNELS)):
        q = np.exp(logs[n] - logsumexp(logs[n]))
        for state, weight, show in zip(states, q, shows[n], strict=True):
            for layer, (h, top, left) in enumerate(state):
                active[h] += weight
                for i, j in product(range(SIZE), repeat=2):
                    d = (top + i) % SIDE, (left + j) % SIDE
                    nearer = show[(slice(layer + 1, None), *d)].sum()
                    shown[h, i, j] += weight * show[(layer, *d)]
                    passed[h, i, j] += weight * (1 - nearer - show[(layer, *d)])
                    numerator[h, i, j] += weight * show[(layer, *d)] * y[d]
    return shown, passed, numerator, active


def iterated(params, Y, learn=("W", "T", "sigma", "pi")):
    problem, _ = problem_of(model_job(learn=learn), Y)
    return iterate(problem, Ranks(), params, settings_at(problem, 0, params))


def test_an_iteration_is_that_of_sums_over_all_states_and_masks(judged):
    params, Y, _, logs, _ = judged
    shown, passed, numerator, active = sums_by_masks(judged)
    new, info = iterated(params, Y)
    assert info.free_energy == pytest.approx(logsumexp(logs, 1).mean(), abs=1e-10)
    error = (Y**2).sum() - (numerator**2 / shown[..., None]).sum()
    expected = {
        "W": (shown / (shown + passed)).reshape(H, -1).T,
        "T": (numerator / shown[..., None]).reshape(H, -1).T,
        "sigma": np.sqrt(error / Y.size),
        "pi": active / N,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(new[name], value, rtol=0, atol=1e-10)
    alone, _ = iterated(params, Y, ("sigma",))
    kept = params["T"].T.reshape(numerator.shape)
    error = (Y**2).sum() - (2 * kept * numerator - kept**2 * shown[..., None]).sum()
    assert alone["sigma"] == pytest.approx(np.sqrt(error / Y.size), abs=1e-10)
    assert (alone["W"] == params["W"]).all()
    assert (alone["T"] == params["T"]).all()


def test_the_m_step_is_where_the_expected_log_joint_is_largest(judged):
    """Compare with finite differences of the expected log joint under the posteriors of the old parameters."""
    params, Y, _, _, _ = judged
    shown, passed, numerator, active = sums_by_masks(judged)
    new, _ = iterated(params, Y)

    def expected(vector):
        W, T, sigma, pi = np.split(vector, np.cumsum([INSIDE * H, INSIDE * CHANNELS * H, 1]))
        W, T = W.reshape(INSIDE, H).T.reshape(shown.shape), T.reshape(-1, H).T.reshape(numerator.shape)
        error = (Y**2).sum() - (2 * T * numerator - T**2 * shown[..., None]).sum()
        value = (shown * np.log(W) + passed * np.log(1 - W)).sum() - error / (2 * sigma[0] ** 2)
        value -= Y.size * np.log(sigma[0])
        return value + (active * np.log(pi) + (N - active) * np.log(1 - pi)).sum()

    top = np.concatenate([np.ravel(new[name]) for name in ("W", "T", "sigma", "pi")])
    step = 1e-5
    for k in range(len(top)):
        at = np.eye(len(top))[k] * step
        up, here, down = expected(top + at), expected(top), expected(top - at)
        assert abs(up - down) / (2 * step) < 1e-6
        assert up < here > down


@pytest.mark.parametrize("scheme", [EXACT, {"scheme": "tv", "states": 12, "gamma": 2}, {"scheme": "hard", "gamma": 2}])
def test_the_free_energy_never_falls(scheme):
    Y = points(9)
    result = fit(model_job(scheme, iterations=12) | {"data": {}}, Y)
    course = result.history["free_energy"]
    assert (np.diff(course) > -1e-9).all()
    assert course[-1] > course[0] + 0.5


def test_selection_takes_the_best_place_of_each_object_and_then_the_best_objects():
    params, Y = some_params(), points()
    problem, step = problem_at_rest(params)
    view = step.evaluator.observe(Block(pad_rows(Y), problem.model.D, 0))
    W, T = params["W"].reshape(SIZE, SIZE, H), params["T"].reshape(SIZE, SIZE, CHANNELS, H)
    fits = np.zeros((N, H, SIDE, SIDE))
    for n, h, top, left in product(range(N), range(H), range(SIDE), range(SIDE)):
        for i, j in product(range(SIZE), repeat=2):
            y = Y[n].reshape(SIDE, SIDE, CHANNELS)[(top + i) % SIDE, (left + j) % SIDE]
            other = min(y @ y, 2 * params["sigma"] ** 2)
            fits[n, h, top, left] += W[i, j, h] * (other - ((y - T[i, j, :, h]) ** 2).sum())
    fits = fits.reshape(N, H, PLACES)
    np.testing.assert_allclose(view.scores(), fits, rtol=0, atol=1e-12)
    for n, (one, both, three) in enumerate(zip(*(view.select(k) for k in (1, 2, 3)), strict=True)):
        tops = {h + H * int(fits[n, h].argmax()) for h in range(H)}
        assert set(both.tolist()) == tops
        assert (np.diff(both) > 0).all()
        h = int(fits[n].max(1).argmax())
        assert one.tolist() == [h + H * int(fits[n, h].argmax())]
        rest = {h + H * x: fits[n, h, x] for h in range(H) for x in range(PLACES) if h + H * x not in tops}
        assert set(three.tolist()) == tops | {max(rest, key=rest.get)}


@pytest.mark.parametrize("singletons", [False, True])
def test_candidates_of_one_object_at_two_places_are_never_active_together(judged, singletons):
    params, Y, states, logs, _ = judged
    scheme = {"candidates": 5, "gamma": 2, "singletons": singletons}
    problem, step = problem_at_rest(params, scheme)
    block = Block(pad_rows(Y), problem.model.D, 0)
    posterior, _ = problem.scheme.infer(step, block, {})
    for n in range(N):
        chosen = set(posterior.candidates[n].tolist())
        inside = [
            log
            for s, log in zip(states, logs[n], strict=True)
            if set(atoms_of(s)) <= chosen or (singletons and len(s) == 1)
        ]
        assert posterior.evidence[n] == pytest.approx(logsumexp(inside), abs=1e-10)


def test_drawn_images_show_objects_at_their_places():
    params = {**some_params(), "sigma": np.array(1e-9), "W": np.full((INSIDE, H), 0.999999)}
    problem, _ = problem_at_rest(some_params())
    Y, states = problem.model.draw(params, np.random.default_rng(1), 300)
    np.testing.assert_allclose(Y, problem.model.mean(params, states), atol=1e-4)
    half = {**params, "W": np.full((INSIDE, H), 0.5)}
    alone = np.full((4000, 1), H * 4, np.int32)
    problem.model.prior.draw = lambda *_: alone
    drawn, _ = problem.model.draw(half, np.random.default_rng(2), 4000)
    np.testing.assert_allclose(drawn.mean(0), problem.model.mean(half, alone[0]), atol=0.1)
    counts = np.bincount((states >= 0).sum(1), minlength=3) / 300
    np.testing.assert_allclose(counts, [0.28, 0.54, 0.18], atol=0.09)


def test_typical_windows_show_every_kind_of_object():
    rng, side, size = np.random.default_rng(5), 12, 3
    kinds = rng.uniform(0.5, 1.0, (4, size, size, 1))
    images = 0.02 * rng.standard_normal((80, side, side, 1))
    for image, kind in zip(images, np.arange(80) % 4, strict=True):
        top, left = rng.integers(side, size=2)
        rows, columns = (top + np.arange(size)) % side, (left + np.arange(size)) % side
        image[np.ix_(rows, columns)] += kinds[kind]
    found = typical_windows(images, size, 4)
    gaps = ((found[:, None] - kinds) ** 2).mean((2, 3, 4))
    assert sorted(gaps.argmin(1)) == [0, 1, 2, 3]
    assert gaps.min(1).max() < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_dark_objects_have_a_typical_window_though_every_image_has_a_bright_object(seed):
    rng, side, size = np.random.default_rng(seed), 16, 4
    kinds = rng.uniform(0.5, 1.0, (4, size, size, 1)) * np.array([1.0, 1.0, 1.0, 0.3])[:, None, None, None]
    images = 0.02 * rng.standard_normal((200, side, side, 1))
    for image in images:
        for kind in rng.permutation([rng.integers(3), 3]):
            top, left = rng.integers(side, size=2)
            rows, columns = (top + np.arange(size)) % side, (left + np.arange(size)) % side
            image[np.ix_(rows, columns)] = kinds[kind]
    found = typical_windows(images, size, 4)
    gaps = ((found[:, None] - kinds) ** 2).mean((2, 3, 4))
    assert sorted(gaps.argmin(1)) == [0, 1, 2, 3]
    assert gaps.min(1).max() < 0.01


def test_images_that_are_not_square_are_refused_in_one_line():
    with pytest.raises(
        UserError, match=r"data: expected square images, or model.rows, of 2 values per pixel, found 12"
    ):
        problem_of(model_job(), np.ones((4, 12)))
    with pytest.raises(UserError, match=r"model.size: expected objects that fit into the images, found 2 in images"):
        problem_of(model_job(), np.ones((4, 2)))


def test_places_of_the_best_state_are_returned():
    params = {**some_params(), "W": np.full((INSIDE, H), 0.99), "sigma": np.array(0.05)}
    problem, _ = problem_at_rest(params)
    state = [(1, 2, 0), (0, 0, 1)]
    y = problem.model.mean(params, padded_states([state]))
    found = Inference(problem.model, problem.scheme, params, ("map",)).block(y)
    assert found["map_places"].tolist() == [[[0, 1], [2, 0]]]
    assert np.flatnonzero(found["map_order"][0] == 1).tolist() == atoms_of(state[:1])


def test_candidates_are_at_most_all_places_of_all_objects():
    model = {"name": "inveca", "causes": H, "size": SIZE, "channels": CHANNELS}
    problem, _ = problem_of(job_table(model, {"candidates": H * PLACES, "gamma": 1}), points())
    found, _ = problem.scheme.infer(
        inference_context(problem.model, problem.scheme, some_params()), all_of(problem), {}
    )
    np.testing.assert_array_equal(found.candidates, np.tile(np.arange(H * PLACES), (N, 1)))
    with pytest.raises(UserError) as refused:
        problem_of(job_table(model, {"candidates": H * PLACES + 1, "gamma": 1}), points())
    expected = f"at most {H * PLACES}, model.causes times places"
    assert str(refused.value) == f"inference.candidates: expected {expected}, found {H * PLACES + 1}"


def all_of(problem):
    return Block(pad_rows(points()), problem.model.D, 0)
