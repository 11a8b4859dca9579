"""Inference of blocks of rows, and the search for MAP states with more than gamma causes."""

from concurrent.futures import ThreadPoolExecutor

import brute
import numpy as np
import pytest
from problems import job_table, params_of, problem_of, random_data, random_params

from parallel_et.core.latent_states import Latents
from parallel_et.errors import UserError
from parallel_et.inference import posterior as inference
from parallel_et.inference.posterior import QUANTITIES, Inference

MODELS = ["linca", "nmf", "mca"]


def inference_of(name, params, what=QUANTITIES, **options):
    D, H = params["W"].shape
    problem, _ = problem_of(job_table({"name": name, "causes": H}, options), np.ones((2, D)))
    return Inference(problem.model, problem.scheme, params, what)


def busy_data(name, N, params, share, noise, seed):
    """Return points in which each cause is active with a given probability, and their states."""
    rng = np.random.default_rng(seed)
    s = (rng.random((N, params["W"].shape[1])) < share).astype(int)
    clean = np.array([brute.mean(name, params["W"], row) for row in s])
    return clean + rng.normal(0, noise, clean.shape), s


def numbers(params):
    """Return fields, sigma and pi."""
    return params["W"], float(params["sigma"]), float(params["pi"])


def most_probable(name, params, y, states):
    logs = [brute.log_joint(name, *numbers(params), y, s) for s in states]
    return states[int(np.argmax(logs))]


def raised_map(name, params, y, count, gamma, singletons, most):
    """Return the MAP state and the last gamma of the procedure of OCA sec. 4.5."""
    H = params["W"].shape[1]
    while True:
        best = most_probable(name, params, y, brute.considered(name, *numbers(params), y, count, gamma, singletons))
        higher = min(count + 1, H), gamma + 1
        if best.sum() < gamma or gamma == count == H or Latents(H).states(*higher) > most:
            return best, gamma
        count, gamma = higher


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count, gamma, singletons", [(3, 2, False), (3, 2, True), (5, 3, True), (5, 5, False)])
def test_all_tables_of_a_block_equal_brute_force(name, count, gamma, singletons):
    params = random_params(name, 7, 5, seed=gamma)
    Y = random_data(name, 21, params, seed=count).astype(np.float32)
    trained = inference_of(name, params, candidates=count, gamma=gamma, singletons=singletons)
    found = trained.block(Y)
    assert {key: (value.shape, value.dtype) for key, value in found.items()} == trained.tables(21)
    assert set(found) == {*QUANTITIES, "map_gamma"}
    for n, y in enumerate(Y.astype(np.float64)):
        states = brute.considered(name, *numbers(params), y, count, gamma, singletons)
        q, F = brute.posterior(name, *numbers(params), y, states, 1.0)
        assert found["evidence"][n] == pytest.approx(F, rel=1e-10)
        assert found["candidates"][n].tolist() == brute.candidates(name, *numbers(params), y, count)
        np.testing.assert_allclose(found["means"][n], q @ states, rtol=1e-10, atol=1e-14)
        expected = sum(p * brute.mean(name, params["W"], s) for p, s in zip(q, states, strict=True))
        np.testing.assert_allclose(found["reconstruction"][n], expected, rtol=1e-10, atol=1e-10)
        best, last = raised_map(name, params, y, count, gamma, singletons, 1 << 20)
        assert (found["map"][n].tolist(), found["map_gamma"][n]) == (best.tolist(), last)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count, gamma, singletons, most", [(3, 1, True, 256), (4, 2, False, 256), (8, 2, False, 219)])
def test_full_map_states_are_sought_again_with_more_causes(name, count, gamma, singletons, most, monkeypatch):
    monkeypatch.setattr(inference, "MAX_MAP_STATES", most)
    params = random_params(name, 12, 8, seed=3)
    Y, _ = busy_data(name, 24, params, share=0.5, noise=1.0, seed=4)
    found = inference_of(name, params, ["map"], candidates=count, gamma=gamma, singletons=singletons).block(Y)
    assert set(found) == {"map", "map_gamma"}
    expected = [raised_map(name, params, y, count, gamma, singletons, most) for y in Y]
    assert found["map"].tolist() == [best.tolist() for best, _ in expected]
    assert found["map_gamma"].tolist() == [last for _, last in expected]
    assert len(set(found["map_gamma"])) > 2
    full = found["map"].sum(1) == found["map_gamma"]
    assert (found["map_gamma"][full] == 5 if most == 219 else found["map_gamma"][full] == 8).all()
    assert full.any() or most == 256


@pytest.mark.parametrize("name", MODELS)
def test_exact_inference_finds_the_map_state_of_all(name):
    params = random_params(name, 9, 6, seed=5)
    Y, _ = busy_data(name, 15, params, share=0.6, noise=2.0, seed=6)
    found = inference_of(name, params, ["map"], scheme="exact").block(Y)
    every = list(brute.all_states(6))
    assert found["map"].tolist() == [most_probable(name, params, y, every).tolist() for y in Y]
    assert (found["map_gamma"] == 6).all()


@pytest.mark.parametrize("name", MODELS)
def test_points_with_more_causes_than_gamma_get_their_true_causes(name):
    W = random_params(name, 60, 10, seed=7)["W"]
    params = params_of(W, 0.1, 0.3)
    Y, s = busy_data(name, 40, params, share=0.45, noise=0.1, seed=8)
    found = inference_of(name, params, candidates=6, gamma=3, singletons=True).block(Y)
    assert (s.sum(1) > 3).sum() > 15
    assert (found["map"] == s).all()
    assert (found["map_gamma"] == np.clip(s.sum(1) + 1, 3, 10)).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_block_in_pieces_gives_the_same_as_a_whole(name, monkeypatch):
    params = random_params(name, 12, 8, seed=9)
    Y, _ = busy_data(name, 50, params, share=0.5, noise=1.0, seed=10)
    trained = inference_of(name, params, candidates=4, gamma=2, singletons=True)
    whole = trained.block(Y)
    monkeypatch.setattr(inference, "MAX_WEIGHTS", 1000)
    assert [len(piece) for piece in inference.split_rows(np.arange(50), 40)] == [24, 24, 2]
    pieces = trained.block(Y)
    for key in whole:
        np.testing.assert_allclose(pieces[key], whole[key], rtol=1e-12, atol=1e-14)


def test_blocks_can_be_done_by_several_threads():
    params = random_params("linca", 12, 8, seed=9)
    Y, _ = busy_data("linca", 400, params, share=0.5, noise=1.0, seed=10)
    blocks = [Y[start : start + 50] for start in range(0, 400, 50)]
    trained, other = (inference_of("linca", params, candidates=4, gamma=2) for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(trained.block, blocks))
    for a, b in zip(found, map(other.block, blocks), strict=True):
        assert all(a[key].tobytes() == b[key].tobytes() for key in b)


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_block_gives_empty_tables(name):
    params = random_params(name, 7, 5, seed=11)
    trained = inference_of(name, params, candidates=3, gamma=2, singletons=True)
    found = trained.block(np.empty((0, 7), np.float32))
    assert {key: (value.shape, value.dtype) for key, value in found.items()} == trained.tables(0)


def test_what_cannot_be_done_is_said():
    params = random_params("mca", 7, 5, seed=12)
    with pytest.raises(UserError, match=r"quantities: expected some of evidence, .*, found modes"):
        inference_of("mca", params, ["means", "modes"], candidates=3, gamma=2)
    trained = inference_of("mca", params, ["means"], candidates=3, gamma=2)
    with pytest.raises(UserError, match="data: expected rows of 7 numbers, found 6"):
        trained.block(np.ones((4, 6)))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", MODELS)
def test_a_point_beyond_the_numbers_ends_it_by_its_index(name):
    W = random_params(name, 7, 5, seed=13)["W"]
    trained = inference_of(name, params_of(W, 1e-60, 0.3), ["means"], candidates=3, gamma=2)
    Y = np.ones((4, 7))
    Y[2, 3] = 1e99
    with pytest.raises(UserError, match="point 12: expected finite evidence"):
        trained.block(Y, first=10)
