"""Gibbs sampling: against the exact posterior, against a plain twin of its kernel, and by its counts of states."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from brute import all_states
from launch import call, ended, learned, ranks_of, start, train, wait_for, with_startup_code
from problems import job_table, problem_of, random_data, random_params
from scipy.special import expit, logsumexp, ndtri
from scipy.stats import chi2
from slab_model import SPREAD, Slab, SlabView

from parallel_et import fit
from parallel_et.core.gibbs import Chains, Sweeps
from parallel_et.core.latent_states import binary
from parallel_et.core.posterior import Draws, Listed, SampledMoments
from parallel_et.core.random import Random
from parallel_et.core.types import Block, Settings
from parallel_et.em.e_step import inference_context
from parallel_et.errors import UserError
from parallel_et.job.job import check_job
from parallel_et.kernels import gibbs, select
from parallel_et.kernels.rows import pad_rows
from parallel_et.models import MODELS
from parallel_et.models.components import linear

D, H = 9, 5
MIXING = {"linca": 6.0, "nmf": 9.0, "mca": 5.0}
"""Noise at which chains can reach all states."""


def inferred(model, inference, params, Y, seed=0, beta=1.0):
    """Return the posterior of all points by a scheme, and its context."""
    table = job_table(model, inference)
    if "sigma" not in params or "var" in params:
        table["model"] = model
    problem, _ = problem_of(table, Y)
    step = inference_context(problem.model, problem.scheme, params, seed)._replace(beta=beta)
    return problem.scheme.infer(step, Block(pad_rows(Y), Y.shape[1], 0), {})[0], step


def mixing(name, points=60):
    params = {**random_params(name, D, H, seed=3), "sigma": np.array(MIXING[name])}
    return params, random_data(name, points, params, seed=4)


def second_moments(posterior):
    """Return <s s^T> of all points, (n, H, H)."""
    if isinstance(posterior, SampledMoments | linear.TabledMoments):
        table = np.empty((len(posterior.evidence), H, H))
        for j in range(H):
            for i in range(j + 1):
                table[:, i, j] = table[:, j, i] = posterior.moments[j * (j + 1) // 2 + i]
        return table
    point, states, q = posterior.pairs(np.ones(len(posterior.evidence), bool))
    s, table = binary(states, H).astype(float), np.zeros((len(posterior.evidence), H, H))
    np.add.at(table, point, q[:, None, None] * s[:, :, None] * s[:, None])
    return table


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("name", MIXING)
def test_errors_of_moments_shrink_as_one_over_the_root_of_the_samples(name, beta):
    params, Y = mixing(name)
    exact = second_moments(inferred({"name": name, "causes": H}, {"scheme": "exact"}, params, Y, beta=beta)[0])
    errors = []
    for sweeps in (6, 96):
        keys = {"scheme": "sample", "samples": sweeps * 8 * H, "chains": 8, "burn_in": 0.5}
        found = second_moments(inferred({"name": name, "causes": H}, keys, params, Y, beta=beta)[0])
        errors.append(np.sqrt(np.mean((found - exact) ** 2)))
    assert errors[1] < 0.03
    assert 2.8 < errors[0] / errors[1] < 5.6  # 4, were there no chance


def surprise(counts, probability):
    """Return log10 of the p-value of counts of states in the chi-square test. Rare states are pooled."""
    rare = probability * counts.sum() < 10
    counts, expected = (np.append(values[~rare], values[rare].sum()) for values in (counts, counts.sum() * probability))
    counts, expected = counts[expected > 0], expected[expected > 0]
    return chi2.logsf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1) / np.log(10)


@pytest.mark.parametrize("name", MIXING)
def test_states_have_the_frequencies_of_the_posterior_and_a_slightly_wrong_posterior_is_detected(name, monkeypatch):
    monkeypatch.setattr(linear, "MAX_MOMENT_CANDIDATES", 0)
    params, Y = mixing(name, 1)
    chains, sweeps = 4096, 24
    keys = {"scheme": "sample", "samples": sweeps * chains * H, "chains": chains, "burn_in": 0.99}
    posterior, step = inferred({"name": name, "causes": H}, keys, params, Y, seed=5)
    assert isinstance(posterior, Listed)
    counts, place = np.zeros(2**H), 2 ** np.arange(H)[::-1]
    _, states, q = posterior.pairs(np.ones(1, bool))
    counts[binary(states, H) @ place] = np.round(q * chains)
    assert counts.sum() == chains  # of each chain its last state
    every = [np.flatnonzero(s).tolist() for s in all_states(H)]
    lists = np.array([[*active, *[-1] * (H - len(active))] for active in every], np.int32)

    def posterior_of(wrong):
        model = step.evaluator.model
        evaluator = model.evaluator({**params, "sigma": wrong * params["sigma"]}, settings_of(model))
        logs = evaluator.log_joint(Y[:, None], lists[None])[0]
        return np.exp(logs - logsumexp(logs))

    assert surprise(counts, posterior_of(1.0)) > -3
    assert surprise(counts, posterior_of(1.2)) < -6


def settings_of(model):
    return Settings(0, 1.0, 0.0, 0, {}, {name: own.rule(1.0) for name, own in model.schedules.items()}, H)


def splitmix(seed, counter):
    """Return a SplitMix64 number, computed with Python integers."""
    mask = (1 << 64) - 1
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def test_the_kernel_draws_the_same_states_as_a_plain_loop():
    rng = np.random.default_rng(1)
    n, atoms, C, chains, sweeps, burn, beta, precision, key, first = 5, 9, 6, 11, 7, 2, 0.8, 0.3, 12345, 70
    W = rng.normal(0, 2, (4, atoms))
    gram, bias, base = W.T @ W, rng.normal(-1, 1, atoms), rng.normal(size=n)
    candidates = np.array([np.sort(rng.permutation(atoms)[:C]) for _ in range(n)], np.int32)
    products = rng.normal(0, 8, (n, C))
    plan = Sweeps(sweeps, burn, chains, Random(3, 4), first)
    order, betas = plan.order(C), plan.betas(beta)
    assert (np.sort(order, 1) == np.arange(C)).all()
    assert (betas[burn:] == beta).all()
    assert (np.diff(betas) >= 0).all()
    evidence, found, draws = np.empty(n), np.empty((n, C), bool), np.empty((n, C, 16), np.uint8)
    args = (products, base, bias, gram, precision, beta, candidates, np.uint64(key), first, order, betas, burn, chains)
    gibbs.sample(*args, evidence, found, draws)
    moments = np.empty((C * (C + 1) // 2, n))
    gibbs.moments_of_draws(draws.view(np.uint64), float(plan.draws), moments)

    width = 16  # chains in whole vectors
    for p in range(n):
        seed = splitmix(key + (first + p - 1) * 0x9E3779B97F4A7C15, 0)  # mixed(key + GOLDEN (first + p))
        number = iter(range(1 << 20))

        def uniforms(seed=seed, number=number):
            return np.array([((splitmix(seed, next(number)) >> 12) + 0.5) * 2.0**-52 for _ in range(width)])

        G, left = gram[np.ix_(candidates[p], candidates[p])] * precision, products[p] * precision + bias[candidates[p]]
        G[np.diag_indices(C)] = 0.0

        def log_joint(s, G=G, left=left, p=p):
            return base[p] + s @ left - s @ G @ s / 2

        s = np.zeros((width, C))
        s[np.arange(width), (uniforms() * C).astype(int)] = 1.0
        visited, kept = {}, []
        for t in range(sweeps):
            for j in order[t]:
                s[:, j] = uniforms() < expit(betas[t] * (left[j] - s @ G[j]))
            for state in s[:chains]:
                visited.setdefault(tuple(state), log_joint(state))
            kept += [s[:chains].copy()] if t >= burn else []
        kept = np.array(kept)
        bits = np.unpackbits(draws[p], -1, bitorder="little").reshape(C, 8, width)
        np.testing.assert_array_equal(bits[:, : len(kept), :chains], kept.transpose(2, 0, 1))
        assert not bits[:, len(kept) :].any()
        assert not bits[:, :, chains:].any()
        assert 1 < len(visited) < chains * sweeps
        np.testing.assert_allclose(evidence[p], logsumexp(beta * np.array(list(visited.values()))), rtol=1e-12)
        np.testing.assert_array_equal(found[p], max(visited, key=visited.get))
        second = np.einsum("tci,tcj->ij", kept, kept) / plan.draws
        np.testing.assert_allclose(moments[:, p], [second[i, j] for j in range(C) for i in range(j + 1)], rtol=1e-14)


@pytest.mark.parametrize("wide", [0, 100])
@pytest.mark.parametrize("name", MIXING)
def test_the_evidence_is_that_of_the_distinct_states_and_below_the_exact_one(name, wide, monkeypatch):
    monkeypatch.setattr(linear, "MAX_MOMENT_CANDIDATES", wide)
    params, Y = mixing(name)
    keys = {"scheme": "sample", "samples": 3 * 4 * H, "chains": 4, "burn_in": 0.0}
    few, step = inferred({"name": name, "causes": H}, keys, params, Y, beta=0.7)
    exact, _ = inferred({"name": name, "causes": H}, {"scheme": "exact"}, params, Y, beta=0.7)
    assert (few.evidence < exact.evidence).all()
    best = step.evaluator.observe(Block(pad_rows(Y), D, 0)).best(few)
    logs = step.evaluator.log_joint(Y, best)
    assert (0.7 * logs <= few.evidence + 1e-9).all()
    if isinstance(few, Listed):
        point, states, _ = few.pairs(np.ones(len(Y), bool))
        assert len(np.unique(np.column_stack([point, binary(states, H)]), axis=0)) == len(point)
        logs = 0.7 * step.evaluator.log_joint(Y[point], states)
        expected = [logsumexp(logs[point == n]) for n in range(len(Y))]
        np.testing.assert_allclose(few.evidence, expected, rtol=1e-11)
    keys["samples"] = 400 * 4 * H
    many, _ = inferred({"name": name, "causes": H}, {**keys, "burn_in": 0.5}, params, Y, beta=0.7)
    assert (many.evidence <= exact.evidence + 1e-9).all()
    assert (exact.evidence - many.evidence).mean() < 0.01


@pytest.mark.parametrize("name", MIXING)
def test_distinct_states_may_be_weighed_by_their_joint(name):
    params, Y = mixing(name)
    keys = {"scheme": "sample", "samples": 6 * 9 * H, "chains": 9, "weights": "joint"}
    found, step = inferred({"name": name, "causes": H}, keys, params, Y, beta=0.7)
    point, states, q = found.pairs(np.ones(len(Y), bool))
    logs = 0.7 * step.evaluator.log_joint(Y[point], states)
    np.testing.assert_allclose(q, np.exp(logs - found.evidence[point]), rtol=1e-9)
    np.testing.assert_allclose(np.bincount(point, q), 1.0, rtol=1e-9)
    drawn, _ = inferred({"name": name, "causes": H}, {**keys, "weights": "draws"}, params, Y, beta=0.7)
    np.testing.assert_allclose(found.evidence, drawn.evidence, rtol=1e-12)
    exact, _ = inferred({"name": name, "causes": H}, {"scheme": "exact"}, params, Y, beta=0.7)
    off = [np.mean((one.means(H) - exact.means(H)) ** 2) for one in (found, drawn)]
    assert off[0] < off[1] / 2


def test_listed_draws_and_moments_of_them_make_the_same_statistics(monkeypatch):
    _, Y = mixing("linca")
    keys = {"scheme": "sample", "candidates": 4, "random": 1, "samples": 4 * 12 * 9, "chains": 12}
    learned = {}
    for limit in (0, 50):
        monkeypatch.setattr(linear, "MAX_MOMENT_CANDIDATES", limit)
        learned[limit] = fit(job_table({"name": "linca", "causes": H}, keys, {"iterations": 1}), Y)
    for name in learned[50].params:
        np.testing.assert_allclose(learned[0].params[name], learned[50].params[name], rtol=1e-9)
    np.testing.assert_array_equal(*(learned[limit].history["free_energy"] for limit in (0, 50)))


def test_mixtures_and_causes_with_several_ways_are_sampled_as_well(monkeypatch):
    rng = np.random.default_rng(2)
    params = {"W": np.asfortranarray(rng.normal(0, 1, (D, H))), "var": np.full(H, 6.0), "pi": rng.dirichlet(np.ones(H))}
    Y = rng.normal(0, 2, (20, D))
    clusters = {"name": "gmm", "causes": H}
    ternary = {"file": str(Path(__file__).parents[2] / "examples/ternary.py"), "causes": 3}
    fields = {"W": np.asfortranarray(rng.normal(0, 2, (D, 3))), "sigma": np.array(5.0), "pi": np.array(0.3)}
    for model, begun, atoms in ((clusters, params, H), (ternary, fields, 6)):
        exact, _ = inferred(model, {"scheme": "exact"}, begun, Y)
        keys = {"scheme": "sample", "samples": 40 * 30 * atoms, "chains": 30}
        found, _ = inferred(model, keys, begun, Y)
        assert np.abs(found.means(atoms) - exact.means(atoms)).max() < 0.12
        assert np.sqrt(np.mean((found.means(atoms) - exact.means(atoms)) ** 2)) < 0.03
        assert (found.evidence <= exact.evidence + 1e-9).all()


class ValuesView(SlabView):
    """A block whose causes have values that are drawn one by one, given those of all others."""

    def initial_chains(self, chains):
        return chains._replace(values=np.ones(chains.active.shape))

    def redraw(self, chains, site, beta, uniforms):
        params = self.evaluator.params
        candidates, active, values = chains
        s = np.where(active, values, 0.0)
        s[..., site] = 0.0
        fields = params["W"].T[candidates]
        rest = self.block.Y[:, None] - np.einsum("nlc,ncd->nld", s, fields)
        own, variance = fields[:, None, site], params["sigma"] ** 2
        precision = 1 / SPREAD**2 + (own**2).sum(-1) / variance
        mean = (1 / SPREAD**2 + (own * rest).sum(-1) / variance) / precision
        odds = (
            self.model.prior.odds(params)
            - np.log(SPREAD * np.sqrt(precision))
            + (mean**2 * precision - 1 / SPREAD**2) / 2
        )
        chance = expit(odds)
        new, value = active.copy(), values.copy()
        new[..., site] = uniforms < chance
        within = np.where(uniforms < chance, uniforms / chance, 0.5)
        value[..., site] = mean + ndtri(np.clip(within, 1e-12, 1 - 1e-12)) / np.sqrt(precision)
        return Chains(candidates, new, value)


class Values(Slab):
    """Causes with values that are drawn."""

    View = ValuesView


def test_values_are_drawn_by_a_conditional_of_the_models_own(monkeypatch):
    monkeypatch.setattr(MODELS, "_own", {})
    MODELS.register("values", Values)
    rng = np.random.default_rng(3)
    params = {"W": np.asfortranarray(rng.normal(0, 2, (D, 3))), "sigma": np.array(3.0), "pi": np.array(0.4)}
    Y = rng.normal(0, 3, (15, D))
    keys = {"scheme": "sample", "samples": 80 * 32 * 3, "chains": 32}
    found, _ = inferred({"name": "values", "causes": 3}, keys, params, Y)
    assert isinstance(found, Draws)
    exact, _ = inferred({"name": "values", "causes": 3}, {"scheme": "exact"}, params, Y)
    assert (found.evidence <= exact.evidence + 1e-9).all()
    expected = np.zeros((15, 3))
    point, states, q = exact.pairs(np.ones(15, bool))
    for n, state, weight in zip(point, states, q, strict=True):
        active = state[state >= 0]
        W, P = params["W"][:, active], 1 / 9.0
        A = P * W.T @ W + np.eye(len(active)) / SPREAD**2
        expected[n, active] += weight * np.linalg.solve(A, P * W.T @ Y[n] + 1 / SPREAD**2)
    assert np.abs(found.means(3) - expected).max() < 0.08
    point, states, _ = found.pairs(np.ones(15, bool))
    probability = np.zeros((15, 3))
    np.add.at(probability, point, binary(states, 3) / len(states) * 15)
    assert np.abs(probability - exact.means(3)).max() < 0.06
    learned = fit(
        job_table({"name": "values", "causes": 3}, {**keys, "samples": 2000, "candidates": 2, "random": 1}), Y
    )
    assert np.isfinite(learned.history["free_energy"]).all()


def test_random_candidates_are_any_of_the_others_and_all_stay_in_order():
    n, atoms, count, random = 6000, 9, 5, 2
    rng, best = np.random.default_rng(4), np.array([2, 3, 8], np.int32)
    candidates = np.zeros((n, count), np.int32)
    candidates[:, : count - random] = best
    select.add_random(rng.random((n, random)), atoms, candidates)
    assert (np.diff(candidates, axis=1) > 0).all()
    assert np.isin(candidates, best).sum() == 3 * n
    others, times = np.unique(candidates[~np.isin(candidates, best)], return_counts=True)
    assert others.tolist() == [0, 1, 4, 5, 6, 7]
    assert surprise(times, np.full(6, 1 / 6)) > -3
    assert candidates.max() < atoms


def test_random_candidates_change_from_iteration_to_iteration_and_truncation_may_have_them_too():
    params, Y = random_params("linca", D, 12, seed=3), random_data("linca", 50, random_params("linca", D, 12, 3), 4)
    keys = {"candidates": 4, "gamma": 2, "random": 2}
    one, _ = inferred({"name": "linca", "causes": 12}, keys, params, Y)
    plain, _ = inferred({"name": "linca", "causes": 12}, {"candidates": 2, "gamma": 2}, params, Y)
    other, _ = inferred({"name": "linca", "causes": 12}, keys, params, Y, seed=1)
    assert (one.candidates != other.candidates).any()
    inside = [set(a) <= set(b) for a, b in zip(plain.candidates.tolist(), one.candidates.tolist(), strict=True)]
    assert all(inside)
    assert (one.evidence >= plain.evidence - 1e-9).all()


def test_a_temperature_by_variance_follows_sigma():
    _, Y = mixing("linca")
    keys = {"scheme": "sample", "candidates": 3, "random": 1, "samples": 240}
    anneal = {"iterations": 4, "temperature": {"variance": [[0.0, 400.0], [1.0, 100.0]]}}
    result = fit(job_table({"name": "linca", "causes": H, "sigma": 6.0}, keys, anneal), Y)
    before = np.append(6.0, result.history["sigma"][:-1])
    variance = np.interp(np.arange(4) / 4, [0, 1], [400, 100])
    np.testing.assert_allclose(result.history["temperature"], np.maximum(1.0, variance / before**2), rtol=1e-12)
    cold = {"iterations": 1, "temperature": {"variance": 4.0}}
    assert fit(job_table({"name": "linca", "causes": H, "sigma": 6.0}, keys, cold), Y).history["temperature"][0] == 1


SAMPLE = {"scheme": "sample"}
MISTAKES = [
    ({"name": "linca"}, {**SAMPLE, "candidates": 9}, {}, "inference.candidates: expected at most model.causes = 5"),
    (
        {"name": "linca"},
        {**SAMPLE, "candidates": 2},
        {},
        "inference.random: expected less than inference.candidates = 2",
    ),
    ({"name": "linca"}, {"candidates": 2, "gamma": 1, "random": 2}, {}, "inference.random: expected less than"),
    ({"name": "linca"}, {**SAMPLE, "burn_in": 1.0}, {}, "inference.burn_in: expected a value below 1"),
    ({"name": "linca"}, {**SAMPLE, "samples": 0}, {}, "inference.samples: expected"),
    ({"name": "linca"}, SAMPLE, {"temperature": {"variance": -1}}, "anneal.temperature.variance: expected a schedule"),
    (
        {"name": "nmf poisson"},
        SAMPLE,
        {"temperature": {"variance": 9}},
        "anneal.temperature.variance: expected a model",
    ),
]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case[3][:50])
def test_mistakes_get_one_line(case):
    model, inference, anneal, line = case
    with pytest.raises(UserError) as error:
        fit(job_table({"causes": H, **model}, inference, anneal), np.ones((4, 3)))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_chains_and_samples_that_do_not_divide_make_whole_sweeps():
    job = check_job(job_table({"name": "linca", "causes": H}, {**SAMPLE, "samples": 101, "chains": 10}))
    scheme = job.Scheme(job.inference, job.Model(job.model, 3).latents)
    assert (scheme.sweeps, scheme.burn, scheme.count) == (3, 1, 150)
    assert scheme.description == "150 samples per point, in 10 chains of 3 sweeps over 5 causes"


@pytest.mark.parametrize("burn_in, samples, burn", [(1 / 3, 200, 1), (1 / 3, 100, 0), (0.0, 200, 0), (1 / 3, 600, 2)])
def test_short_chains_forget_a_sweep_where_they_have_another(burn_in, samples, burn):
    keys = {**SAMPLE, "samples": samples, "chains": 20, "burn_in": burn_in}
    job = check_job(job_table({"name": "linca", "causes": H}, keys))
    assert job.Scheme(job.inference, job.Model(job.model, 3).latents).burn == burn


def test_two_sweeps_of_chains_that_begin_with_any_cause_leave_pi_where_it_is():
    rng, causes = np.random.default_rng(3), 12
    W = rng.normal(0, 2, (20, causes))
    params = {"W": np.asfortranarray(W), "sigma": np.array(1.0), "pi": np.array(0.2)}
    Y = (rng.random((600, causes)) < 0.2) @ W.T + rng.standard_normal((600, 20))
    model, keys = {"name": "linca", "causes": causes}, {**SAMPLE, "samples": 2 * 20 * causes, "chains": 20}
    exact = inferred(model, {"scheme": "exact"}, params, Y)[0].means(causes).mean()
    found = [inferred(model, keys, params, Y, seed)[0].means(causes).mean() for seed in range(4)]
    assert abs(np.mean(found) - exact) < 0.004


JOB = """
[model]
name = "linca"
causes = 8
[data]
source = "bars"
points = 300
[inference]
scheme = "sample"
candidates = 5
samples = 500
[anneal]
iterations = 25
noise.W = 0.05
temperature = { variance = [[0.1, 40.0], [0.8, 4.0]] }
[run]
picture = false
checkpoint = { every = 2 }
"""
SLOW = """
import time
from parallel_et.runs.checkpointer import Checkpointer
after = Checkpointer._after
Checkpointer._after = lambda checkpointer: time.sleep(0.1) or after(checkpointer)
"""


def test_a_run_that_is_killed_goes_on_to_the_same_bits_on_other_ranks(tmp_path):
    for name in ("job", "whole"):
        (tmp_path / f"{name}.toml").write_text(JOB)
    assert call("train", "whole.toml", cwd=tmp_path).returncode == 0
    process = start(2, "job.toml", cwd=tmp_path, **with_startup_code(tmp_path, SLOW))
    wait_for(lambda: list((tmp_path / "runs/job/checkpoints").glob("*.h5")), process)
    os.kill(ranks_of(tmp_path)[0], signal.SIGKILL)
    ended(process, tmp_path)
    assert not (tmp_path / "runs/job/result.h5").exists()
    done = train(3, "job.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumes from" in done.stdout
    assert learned(tmp_path / "runs/job/result.h5") == learned(tmp_path / "runs/whole/result.h5")
