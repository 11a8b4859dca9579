"""One whole iteration of every model against sums over explicit states."""

import numpy as np
import pytest
from brute import iteration
from problems import iterate, job_table, problem_of, random_data, random_params
from scipy.optimize import minimize

from parallel_et.core.types import Settings
from parallel_et.models.components.maximal import keep_order
from parallel_et.parallel.communicator import Ranks

N, D, H = 41, 7, 5

CASES = [
    # model, M-step, candidates, gamma, singletons, temperature, rho, cut
    *[
        (name, step, count, gamma, singletons, temperature, rho, cut)
        for name, step in [
            ("linca", None),
            ("nmf", "clamp"),
            ("nmf", "multiplicative"),
            ("mca", None),
            ("mca poisson", None),
            ("nmf poisson", None),
        ]
        for count, gamma, singletons in [(3, 2, False), (3, 2, True), (4, 3, True), (5, 5, False)]
        for temperature, rho in [(1.0, np.inf), (1.05, 21.0), (6.0, 1.2)]
        for cut in [0.0, 0.7]
    ]
]


@pytest.mark.parametrize("name, step, count, gamma, singletons, temperature, rho, cut", CASES)
def test_an_iteration_equals_brute_force(name, step, count, gamma, singletons, temperature, rho, cut):
    model = {"name": name, "causes": H} | ({"mstep": step} if step else {})
    table = job_table(model, {"candidates": count, "gamma": gamma, "singletons": singletons})
    seed = CASES.index((name, step, count, gamma, singletons, temperature, rho, cut))
    params = random_params(name, D, H, seed)
    Y = random_data(name, N, params, seed)
    problem, _ = problem_of(table, Y)
    points = N if cut == 0 else 26
    settings = Settings(0, temperature, cut, points, {}, {"rho": rho} if name.startswith("mca") else {}, gamma)
    new, info = iterate(problem, Ranks(), params, settings)
    W, sigma, pi, free_energy, _ = iteration(
        name,
        params["W"],
        float(params.get("sigma", np.nan)),
        float(params["pi"]),
        Y,
        count=count,
        gamma=gamma,
        singletons=singletons,
        temperature=temperature,
        rho=rho,
        points=points,
        cut=cut > 0,
        learn=tuple(params),
        mstep=step,
    )
    assert info.free_energy == pytest.approx(free_energy, rel=1e-10)
    assert float(new["pi"]) == pytest.approx(pi, rel=1e-10)
    np.testing.assert_allclose(new["W"], W, rtol=1e-10, atol=1e-10 * np.abs(W).max())
    assert float(new.get("sigma", np.nan)) == pytest.approx(sigma, rel=1e-10, nan_ok=True)


@pytest.mark.parametrize("noise", ["gauss", "poisson"])
def test_fields_that_keep_their_order_maximise_the_free_energy_in_that_order(noise):
    """Compare with a numerical maximisation over the increments of sorted fields, for one pixel."""
    rng = np.random.default_rng(9)
    for _ in range(20):
        old, new, weight = rng.gamma(2.0, 2.0, H), rng.gamma(2.0, 2.0, H), rng.gamma(1.0, 3.0, H) + 0.1
        order = np.argsort(old)

        def loss(steps, new=new[order], weight=weight[order]):
            field = steps.cumsum()
            gain = -0.5 * (field - new) ** 2 if noise == "gauss" else new * np.log(field) - field
            return -(weight * gain).sum()

        bounds = [(1e-9, None), *[(0.0, None)] * (H - 1)]
        best = minimize(loss, np.full(H, 0.5), bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000})
        found = keep_order(old[:, None], new[:, None], weight[:, None])[order, 0]
        np.testing.assert_allclose(found, best.x.cumsum(), atol=1e-3)
        assert loss(np.diff(found, prepend=0.0)) <= best.fun + 1e-9
