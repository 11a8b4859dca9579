"""Maximal causes with strengths: the conditional against integrals, its draws, and the M-step against explicit sums."""

from itertools import combinations

import h5py
import numpy as np
import pytest
from launch import call, learned
from problems import job_table, problem_of
from scipy.optimize import minimize
from scipy.stats import kstest, norm

from parallel_et import fit
from parallel_et.core.gibbs import Chains
from parallel_et.core.latent_states import values_by_atom
from parallel_et.core.posterior import Draws, Sparse
from parallel_et.core.types import Block, Settings, Summary
from parallel_et.em.e_step import inference_context
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.kernels.rows import pad_rows
from parallel_et.models.ssmca import MIN_FIELD_FRACTION, MODEL, apply_floor

ALL = ["W", "sigma", "pi", "mu", "psi"]
STILL = Settings(0, 1.0, 0.0, 0, {}, {}, 1)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)


def model_of(D, H, **keys):
    return MODEL(
        check_job(job_table({"name": "ssmca", "causes": H, "learn": ALL, **keys}, {"scheme": "sample"})).model, D
    )


def params_of(rng, D, H, mu, psi, sigma, pi=0.3):
    W = apply_floor(rng.gamma(2.0, 1.0, (D, H)) * (rng.random((D, H)) < 0.4) + 1e-9)
    numbers = {"sigma": sigma, "pi": pi, "mu": mu, "psi": psi}
    return {"W": np.asfortranarray(W / W.mean(0)), **{name: np.array(float(value)) for name, value in numbers.items()}}


class Slab:
    """The slab of cause 0 given all other causes, by integration between the corners of its density."""

    def __init__(self, params, y, others, beta=1.0):
        W, mu, psi, pi = params["W"], float(params["mu"]), float(params["psi"]), float(params["pi"])
        rest = np.maximum((W[:, 1:] * others).max(1, initial=0.0), 0.0)

        def log(s):
            error = (y - np.maximum(rest, s[..., None] * W[:, 0])) ** 2 - (y - rest) ** 2
            likelihood = -error.sum(-1) / (2 * float(params["sigma"]) ** 2)
            return beta * (np.log(pi / (1 - pi)) + likelihood) + norm.logpdf(s, mu, np.sqrt(psi))

        far = 14 * np.sqrt(psi)
        corners = rest / W[:, 0]
        self.edges = np.unique(
            np.concatenate([np.linspace(mu - far, mu + far, 4001), corners[abs(corners - mu) < far]])
        )
        middle, half = (self.edges[1:] + self.edges[:-1]) / 2, np.diff(self.edges) / 2
        logs = log(middle[:, None] + half[:, None] * NODES)
        self.top, self.log = logs.max(), log
        self.below = np.append(0.0, (np.exp(logs - self.top) @ WEIGHTS * half).cumsum())

    @property
    def log_odds(self):
        return self.top + np.log(self.below[-1])

    def cdf(self, s):
        """Return the probability of a value up to s under the slab."""
        k = np.clip(np.searchsorted(self.edges, s) - 1, 0, len(self.edges) - 2)
        middle, half = (self.edges[k] + s) / 2, (s - self.edges[k]) / 2
        within = np.exp(self.log(middle[:, None] + half[:, None] * NODES) - self.top) @ WEIGHTS * half
        return (self.below[k] + within) / self.below[-1]


def redrawn(params, y, others, uniforms, beta=1.0, **keys):
    """Return the values of cause 0 that the model draws from uniforms (m,), given the values of all other causes."""
    D, H = params["W"].shape
    model = model_of(D, H, **keys)
    s = np.tile(np.append(0.0, others), (1, len(uniforms), 1))
    chains = Chains(np.arange(H, dtype=np.int32)[None], s != 0, s)
    block = Block(pad_rows(y[None]), D, 0)
    found = model.evaluator(params, STILL).observe(block).redraw(chains, 0, beta, uniforms[None].copy())
    np.testing.assert_array_equal(found.values[0, :, 1:], s[0, :, 1:])
    return found.values[0, :, 0]


CASES = [
    (2.0, 0.25, 2.0),
    (2.0, 0.25, 0.3),
    (-1.0, 1.0, 0.5),
    (2.0, 1e-4, 1.0),
    (50.0, 900.0, 25.0),
    (50.0, 900.0, 2.0),
]


@pytest.mark.parametrize("mu, psi, sigma", CASES)
@pytest.mark.parametrize("D, H, beta", [(1, 1, 1.0), (9, 3, 0.4), (81, 5, 1.0)])
def test_the_conditional_is_that_of_a_fine_grid(D, H, beta, mu, psi, sigma):
    uniforms = (np.arange(60) + 0.5) / 60
    for seed in range(3):
        rng = np.random.default_rng(seed)
        params = params_of(rng, D, H, mu, psi, sigma)
        s = np.where(rng.random(H) < 0.6, rng.normal(mu, np.sqrt(psi), H), 0.0)
        y = np.maximum((params["W"] * s).max(1), 0.0) + sigma * rng.standard_normal(D)
        found, slab = redrawn(params, y, s[1:], uniforms, beta), Slab(params, y, s[1:], beta)
        active = 1 / (1 + np.exp(-slab.log_odds)) if slab.log_odds > -700 else 0.0
        np.testing.assert_array_equal(found != 0, uniforms < active)
        some = found != 0
        np.testing.assert_allclose(slab.cdf(found[some]), uniforms[some] / active, atol=1e-7)


def test_single_causes_have_the_log_joint_of_an_integral():
    rng = np.random.default_rng(4)
    params, D, H = params_of(rng, 12, 4, 2.0, 0.5, 0.7), 12, 4
    model, Y = model_of(D, H), rng.normal(1.0, 2.0, (5, D))
    found = model.evaluator(params, STILL).observe(Block(pad_rows(Y), D, 0)).log_singletons()
    pi, sigma = float(params["pi"]), float(params["sigma"])
    for n, h in np.ndindex(5, H):
        own = {**params, "W": params["W"][:, [h]]}
        none = norm.logpdf(Y[n], 0, sigma).sum() + H * np.log(1 - pi)
        assert found[n, h] == pytest.approx(none + Slab(own, Y[n], np.empty(0)).log_odds, rel=1e-9)


def test_draws_are_distributed_as_the_conditional():
    rng = np.random.default_rng(5)
    params = params_of(rng, 10, 3, 2.0, 1.0, 1.0)
    others = np.array([1.5, 0.0])
    y = np.maximum((params["W"] * [1.0, *others]).max(1), 0.0) + rng.standard_normal(10)
    found, slab = redrawn(params, y, others, rng.random(4000)), Slab(params, y, others)
    some = found != 0
    assert kstest(found[some], slab.cdf).pvalue > 0.01
    assert kstest(found[some] * 1.02, slab.cdf).pvalue < 1e-3  # a scale error of 2 % would be found
    chance = 1 / (1 + np.exp(-slab.log_odds))
    assert abs(some.mean() - chance) < 3 * np.sqrt(chance * (1 - chance) / 4000) + 1e-12


def test_chains_are_distributed_as_the_posterior():
    rng, D = np.random.default_rng(6), 6
    params, model = params_of(rng, D, 2, 2.0, 0.5, 1.0, pi=0.4), model_of(D, 2)
    y = np.maximum((params["W"] * [2.0, 1.5]).max(1), 0.0) + rng.standard_normal(D)
    grid = np.linspace(-3, 7, 801)
    one = norm.pdf(grid, 2.0, np.sqrt(0.5)) * (grid[1] - grid[0]) * 0.4
    weights, at = np.append(one, 0.6), np.append(grid, 0.0)
    mean = np.maximum(np.maximum(at[:, None, None] * params["W"][:, 0], at[None, :, None] * params["W"][:, 1]), 0.0)
    joint = np.exp(norm.logpdf(y, mean, 1.0).sum(-1)) * weights[:, None] * weights
    joint /= joint.sum()
    expected = [joint.sum(1) @ at, joint.sum(0) @ at]
    table = job_table(
        {"name": "ssmca", "causes": 2, "learn": ALL}, {"scheme": "sample", "samples": 2 * 4000, "chains": 8}
    )
    problem, _ = problem_of(table, np.tile(y, (4, 1)))
    block = Block(pad_rows(np.tile(y, (4, 1))), D, 0)
    found, _ = problem.scheme.infer(inference_context(model, problem.scheme, params), block, {})
    assert isinstance(found, Draws)
    assert np.abs(found.means(2).mean(0) - expected).max() < 0.05
    reconstructed = model.evaluator(params, STILL).observe(block).reconstruct(found).mean(0)
    np.testing.assert_allclose(reconstructed, np.einsum("ij,ijd->d", joint, mean), atol=0.08)


class Totals(dict):
    """A dictionary of sums."""

    def add(self, name, values):
        self[name] = self.get(name, 0.0) + np.asarray(values)


EACH = [list(names) for count in range(4) for names in combinations(("mu", "psi", "pi"), count)]
"""Every choice of parameters with a value for each cause."""


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("learn", [ALL, ["W", "sigma", "pi"], ["W", "sigma", "pi", "mu"]])
def test_the_m_step_maximises_the_log_joint_of_the_draws(learn, each):
    rng, D, H, N, K = np.random.default_rng(7), 7, 4, 12, 5
    params = params_of(rng, D, H, 2.0, 0.5, 1.0)
    params |= {name: np.full(H, float(params[name])) for name in each}
    model = model_of(D, H, each=each, learn=learn)
    s = np.where(rng.random((N, K, H)) < 0.6, rng.normal(2.0, 1.0, (N, K, H)), 0.0)
    Y = rng.gamma(2.0, 1.5, (N, D))
    used = np.arange(N) != 3
    chains = Chains(np.tile(np.arange(H, dtype=np.int32), (N, 1)), s != 0, s)
    draws = Draws(np.zeros(N), chains.states(), Sparse.of(np.full((N, K), 1 / K)), chains.listed_values())
    np.testing.assert_array_equal(values_by_atom(draws.states, draws.values, H), s)
    total = Totals()
    model.evaluator(params, STILL).collect("all", Block(pad_rows(Y), D, 0), draws, used, total)
    new = model.maximise("all", params, {**total, "points": np.array(float(N - 1))}, STILL, summary(Y))
    # explicit sums over the largest cause of each draw
    products, squares, error = np.zeros((D, H)), np.zeros((D, H)), 0.0
    for n, k, d in np.ndindex(N, K, D):
        shown = s[n, k] * params["W"][d]
        h = shown.argmax()
        if used[n] and shown[h] > 0:
            products[d, h] += s[n, k, h] * Y[n, d] / K
            squares[d, h] += s[n, k, h] ** 2 / K
    W = apply_floor(products / squares)
    for n, k, d in np.ndindex(N, K, D):
        shown = s[n, k] * params["W"][d]
        h = shown.argmax()
        if used[n]:
            error += (Y[n, d] - (s[n, k, h] * W[d, h] if shown[h] > 0 else 0.0)) ** 2 / K
    by = W.mean(0) if "mu" in learn else np.ones(H)
    np.testing.assert_allclose(new["W"], W / by, rtol=1e-10)
    assert float(new["sigma"]) == pytest.approx(np.sqrt(error / ((N - 1) * D)), rel=1e-10)
    z, b = (by * s)[used], (s != 0)[used]

    assert new["pi"].shape == ((H,) if "pi" in each else ())
    np.testing.assert_allclose(new["pi"], b.mean((0, 1)) if "pi" in each else b.mean(), rtol=1e-10)
    if "psi" in learn:
        causes = [H if name in each else 1 for name in ("mu", "psi")]

        def worse(x):
            """Return the negative log prior of the active strengths."""
            mu, scale = (np.broadcast_to(part, z.shape) for part in np.split(x, causes[:1]))
            return -norm.logpdf(z[b], mu[b], np.exp(scale[b])).sum()

        best = minimize(worse, np.repeat([1.0, 0.0], causes), method="BFGS", jac="3-point", options={"gtol": 1e-7})
        mu, scale = np.split(best.x, causes[:1])
        for name, found in (("mu", mu), ("psi", np.exp(2 * scale))):
            assert new[name].shape == ((H,) if name in each else ())
            np.testing.assert_allclose(new[name], found if name in each else found[0], rtol=1e-6)
    elif "mu" in learn:
        slope = ((z - new["mu"]) / params["psi"] * b).sum((0, 1))  # of the log prior in mu, for fixed psi
        assert np.abs(slope if "mu" in each else slope.sum()).max() < 1e-9


@pytest.mark.parametrize("each", EACH)
def test_any_parameters_have_a_value_for_each_cause(each):
    Y = np.maximum(np.random.default_rng(12).normal(1.0, 2.0, (60, 6)), 0.0)
    keys = {"scheme": "sample", "samples": 24, "chains": 2}
    found = fit(job_table({"name": "ssmca", "causes": 3, "learn": ALL, "each": each}, keys), Y).params
    assert {name for name in ("mu", "psi", "pi") if found[name].shape == (3,)} == {*each}


def summary(Y):
    return Summary(len(Y), Y.shape[1], np.abs(Y).max(), Y.mean(), np.sqrt((Y**2).mean()), 0.0, Y.std())


def test_adjusted_sums_are_those_of_strengths_at_the_new_scale():
    rng, D, H = np.random.default_rng(8), 7, 3
    params, model = params_of(rng, D, H, 2.0, 0.5, 1.0), model_of(D, H)
    shapes = {name: one.shape for name, one in model.statistics("all").items()}
    sums = {name: rng.gamma(3.0, 1.0, shape) for name, shape in shapes.items()} | {"points": np.array(50.0)}
    new = model.maximise("all", params, sums, STILL, summary(np.ones((2, D))))
    again = model.maximise("all", new, model.adjust_sums("all", sums, params, new), STILL, summary(np.ones((2, D))))
    for name in ("W", "sigma", "mu", "psi"):
        np.testing.assert_allclose(again[name], new[name], rtol=1e-9)


@pytest.mark.parametrize("N, close", [(60, 0.025), (600, 0.005)])
def test_sigma_is_near_that_of_the_maximum_of_the_new_fields(N, close):
    """Compare sigma, which assigns values to causes by the old fields, with the exact one of the new fields."""
    rng, place = np.random.default_rng(12), np.indices((3, 3)).reshape(2, 9)
    bars = (place[:, :, None] == np.arange(3)).transpose(0, 2, 1).reshape(6, 9) * 10.0
    s = np.where(rng.random((N, 6)) < 0.3, rng.normal(1.0, 0.25, (N, 6)), 0.0)
    Y = np.maximum((s[..., None] * bars).max(1), 0.0) + rng.standard_normal((N, 9))
    keys = {"scheme": "sample", "samples": 240, "chains": 1}
    problem, params = problem_of(job_table({"name": "ssmca", "causes": 6, "learn": ALL}, keys), Y)
    model, block, used = problem.model, Block(pad_rows(Y), 9, 0), np.ones(N, bool)
    for iteration in range(12):
        draws, _ = problem.scheme.infer(inference_context(model, problem.scheme, params, iteration), block, {})
        total = Totals()
        model.evaluator(params, STILL).collect("all", block, draws, used, total)
        total["points"] = np.array(float(N))
        new = model.maximise("all", params, total, STILL, summary(Y))
        W = model._fields(params, total)[0].T
        values = values_by_atom(draws.states, draws.values, 6)
        mean = np.maximum((values[:, :, None] * W).max(-1), 0.0)
        best = np.sqrt(((Y[:, None] - mean) ** 2).mean())
        assert iteration == 0 or float(new["sigma"]) == pytest.approx(best, rel=close)
        params = {**params, **new}


def test_frozen_fields_leave_the_scale_of_the_strengths_unchanged():
    rng, D, H = np.random.default_rng(8), 7, 3
    params, model, held = params_of(rng, D, H, 2.0, 0.5, 1.0), model_of(D, H), STILL._replace(fields_frozen=True)
    shapes = {name: one.shape for name, one in model.statistics("all").items()}
    sums = {name: rng.gamma(3.0, 1.0, shape) for name, shape in shapes.items()} | {"points": np.array(50.0)}
    new = model.maximise("all", params, sums, held, summary(np.ones((2, D))))
    np.testing.assert_array_equal(new["W"], params["W"])
    assert float(new["mu"]) == pytest.approx(sums["values"].sum() / sums["active"].sum(), rel=1e-12)
    assert model.adjust_sums("all", sums, params, {**params, **new}) is sums


def test_fields_stay_above_their_floor_and_have_the_mean_one():
    rng = np.random.default_rng(9)
    Y = np.maximum(rng.normal(0, 2, (60, 1)) * (np.arange(8) < 4), 0) + rng.normal(0, 0.3, (60, 8))
    keys = {"scheme": "sample", "samples": 60, "chains": 1}
    free = fit(job_table({"name": "ssmca", "causes": 3, "learn": ALL}, keys), Y).params
    np.testing.assert_allclose(free["W"].mean(0), 1.0, rtol=0.02)
    held = fit(job_table({"name": "ssmca", "causes": 3, "mu": 2.0, "psi": 0.01, "learn": ["W"]}, keys), Y).params
    assert (float(held["mu"]), float(held["psi"])) == (2.0, 0.01)
    for params in (free, held):
        assert (params["W"].min(0) >= 0.999 * MIN_FIELD_FRACTION * params["W"].mean(0) / (1 + MIN_FIELD_FRACTION)).all()


def test_bars_are_found_from_third_moments_on():
    rng, place = np.random.default_rng(10), np.indices((3, 3)).reshape(2, 9)
    bars = (place[:, :, None] == np.arange(3)).transpose(0, 2, 1).reshape(6, 9) * 10.0
    s = np.where(rng.random((600, 6)) < 0.25, rng.normal(1.0, 0.25, (600, 6)), 0.0)
    Y = (s[..., None] * bars).max(1) + rng.standard_normal((600, 9))
    model = {"name": "ssmca", "causes": 6, "learn": ALL, "init": {"W": {"moments": "third"}}}
    found = fit(job_table(model, {"scheme": "sample", "samples": 60, "chains": 1}, {"iterations": 8}), Y).params
    W = found["W"] / np.linalg.norm(found["W"], axis=0)
    assert ((bars / np.linalg.norm(bars, axis=1)[:, None]) @ W).max(1).min() > 0.99
    assert float(found["psi"]) / float(found["mu"]) ** 2 == pytest.approx(0.0625, rel=0.2)


@pytest.mark.parametrize(
    "inference, anneal, line",
    [
        (
            {"scheme": "exact"},
            {},
            'inference.scheme: expected sample for a model whose View is no EnumeratingView, found "exact"',
        ),
        (
            {"scheme": "sample"},
            {"cut": {"schedule": [[0.1, 0.0], [0.5, 1.0]]}},
            "anneal.cut.schedule: expected no cut for a model without evidence, found [[0.1, 0.0], [0.5, 1.0]]",
        ),
        ({"scheme": "sample"}, {"renew": 2}, "anneal.renew: expected 0 for a model without evidence, found 2"),
        (
            {"scheme": "sample", "weights": "joint"},
            {},
            'inference.weights: expected draws for a model without evidence, found "joint"',
        ),
    ],
)
def test_keys_that_need_the_evidence_are_refused_in_one_line(inference, anneal, line):
    with pytest.raises(UserError) as caught:
        check_job(job_table({"name": "ssmca", "causes": 3, "learn": ALL}, inference, anneal))
    assert str(caught.value) == f"job: {line}"


JOB = """
[model]
name = "ssmca"
causes = 6
[data]
source = "bars"
points = 80
grid = 3
std = 2.0
overlap = "max"
[inference]
scheme = "sample"
samples = 24
candidates = 4
chains = 2
[anneal]
iterations = 4
[run]
checkpoint = { every = 2 }
picture = false
"""


def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_bits(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    assert call("train", "job.toml", "--output", "run", cwd=tmp_path).returncode == 0
    whole = learned(tmp_path / "run/result.h5")
    for name in ("result.h5", "checkpoints/000004.h5"):
        (tmp_path / "run" / name).unlink()
    again = call("train", "job.toml", "--output", "run", cwd=tmp_path)
    assert "resumes from 000002.h5" in again.stdout
    assert learned(tmp_path / "run/result.h5") == whole
    done = call("generate", "run", "--points", "50", "--output", "drawn.h5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = call("infer", "run", "drawn.h5:/points", "--output", "posterior.h5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with h5py.File(tmp_path / "posterior.h5") as found, h5py.File(tmp_path / "drawn.h5") as drawn:
        assert found["means"].shape == found["active"].shape == drawn["states"].shape == (50, 6)
        assert (found["active"][()] <= 1).all()
        gap = drawn["points"][()].reshape(50, 9) - found["reconstruction"][()]
        assert np.sqrt((gap**2).mean()) < drawn["points"][()].std()
