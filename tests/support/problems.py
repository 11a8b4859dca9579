"""Small problems for the tests, as jobs and as set-up problems."""

from typing import Any

import numpy as np

from parallel_et.core.types import Params, Settings
from parallel_et.data.base import ArrayRows
from parallel_et.em.loop import em_step
from parallel_et.em.problem import Problem
from parallel_et.em.state import Info
from parallel_et.job.job import check_job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.setup import set_up


def job_table(model: dict[str, Any], inference: dict[str, Any], anneal: dict[str, Any] | None = None, seed: int = 1):
    """Return the table of a job; the name "mca poisson" means mca with Poisson noise."""
    name, _, noise = model.get("name", "").partition(" ")
    usual = {"learn": ["W", "pi"], "noise": noise} if noise else {"learn": ["W", "sigma", "pi"], "sigma": 1.5}
    return {
        "model": {"pi": 0.3, **usual, **model, **({"name": name} if noise else {})},
        "data": {"source": "array:given"},
        "inference": inference,
        "anneal": {"iterations": 3, **(anneal or {})},
        "run": {"seed": seed},
    }


def problem_of(table, Y: np.ndarray, ranks: Ranks | None = None):
    """Return the problem of a job for given data, and its initial parameters."""
    problem, params, _ = set_up(check_job(table), ArrayRows(Y), ranks or Ranks())
    return problem, params


def iterate(problem: Problem, ranks: Ranks, params: Params, settings: Settings) -> tuple[Params, Info]:
    """Return the parameters after one iteration from the initial point states, and its metadata."""
    state, info = em_step(problem, ranks, problem.initial_state(params), settings)
    return state.params, info


def settings_at(problem: Problem, iteration: int, params: Params) -> Settings:
    """Return the settings of an iteration."""
    return problem.schedule.settings(problem.initial_state(params)._replace(iteration=iteration))


def params_of(W: np.ndarray, sigma: float, pi: float) -> dict[str, np.ndarray]:
    return {"W": np.asfortranarray(W), "sigma": np.array(sigma), "pi": np.array(pi)}


def random_data(name: str, N: int, params: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Draw sums or maxima of fields similar to those of ``params``, with noise; counts for ``"… poisson"``."""
    rng = np.random.default_rng(seed)
    D, H = params["W"].shape
    fields = params["W"].T + rng.normal(0, 0.7, (H, D))
    s = rng.random((N, H)) < 0.35
    clean = (s[:, :, None] * fields).max(1) if name.startswith("mca") else s @ fields
    if name.endswith("poisson"):  # counts, with some non-integers in the last dimension
        Y = rng.poisson(np.maximum(clean, 0.0)).astype(float)
        Y[:, -1] *= rng.choice([1.0, 0.37], N)
        return Y
    return clean + rng.normal(0, 1.0, (N, D))


def random_params(name: str, D: int, H: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed + 1000)
    W = rng.normal(0, 3, (D, H)) if name == "linca" else rng.gamma(1.0, 3.0, (D, H))
    params = params_of(W, 1.7, 0.27)
    if name.endswith("poisson"):
        del params["sigma"]
    return params
