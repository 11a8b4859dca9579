import numpy as np
import pytest
from problems import job_table, problem_of, settings_at
from scipy.stats import binom

from parallel_et import fit
from parallel_et.em.schedule import value_at
from parallel_et.kernels.responsibilities import HARD_RHO


@pytest.mark.parametrize(
    "schedule, iteration, value",
    [
        (2.5, 7, 2.5),
        ([[0.1, 13.0], [0.8, 1.0]], 0, 13.0),
        ([[0.1, 13.0], [0.8, 1.0]], 10, 13.0),
        ([[0.1, 13.0], [0.8, 1.0]], 45, 7.0),
        ([[0.1, 13.0], [0.8, 1.0]], 80, 1.0),
        ([[0.1, 13.0], [0.8, 1.0]], 99, 1.0),
        ([[10, 13.0], [80, 1.0]], 45, 7.0),
        ([[0, 4.0], [2, 2.0]], 1, 3.0),
        ([[0, 4.0], [1, 2.0]], 50, 3.0),
    ],
)
def test_a_schedule_is_linear_between_its_points_and_constant_outside(schedule, iteration, value):
    assert value_at(schedule, iteration, 100) == pytest.approx(value)


def problem_with(anneal, name="mca", N=500):
    """Return a problem with these keys of [anneal], and its initial parameters."""
    table = job_table({"name": name, "causes": 10, "pi": 0.2}, {"candidates": 5, "gamma": 3}, anneal)
    return problem_of(table, np.random.default_rng(0).random((N, 6)))


def test_the_cut_falls_to_its_fraction_of_the_points_with_few_causes():
    problem, params = problem_with({"iterations": 100, "cut": {"schedule": [[0.5, 0.0], [0.9, 1.0]], "share": 0.9}})
    expected = 0.9 * 500 * binom.cdf(3, 10, 0.2)
    assert settings_at(problem, 10, params).points == 500
    assert settings_at(problem, 70, params).points == round(500 - 0.5 * (500 - expected))
    assert settings_at(problem, 95, params).points == round(expected)


def test_rho_follows_the_temperature_unless_the_job_sets_it():
    problem, params = problem_with({"iterations": 10, "temperature": 1.05})
    assert settings_at(problem, 0, params).model["rho"] == pytest.approx(21.0)
    problem, params = problem_with({"iterations": 10, "temperature": 1.0})
    assert settings_at(problem, 0, params).model["rho"] == HARD_RHO
    problem, params = problem_with({"iterations": 10, "temperature": 1.0, "rho": [[0, 2.0], [10, 12.0]]})
    assert settings_at(problem, 5, params).model["rho"] == 7.0


def waits(before, W, t, hold, change):
    """Return whether cooling pauses after iteration t, by the published rule (MCA eq. 37, 38)."""
    moved = [
        np.sqrt(sum((old - new) ** 2 for old, new in zip(*fields, strict=True))) / sum(abs(old) for old in fields[0])
        for fields in zip(before.T, W.T, strict=True)
    ]
    return not (t + 1 >= hold and all(one < change for one in moved))


@pytest.mark.parametrize("name", ["mca", "linca", "noisyor"])
def test_a_temperature_that_waits_falls_only_while_no_field_changes_much(name):
    start, end, steps, hold, change, calm = 3.0, 1.2, 5, 4, 0.004, 6
    rng = np.random.default_rng(2)
    Y = (rng.random((150, 3)) < 0.7) @ rng.random((3, 6)) * 4 + rng.normal(0, 0.3, (150, 6))
    temperature = {"start": start, "end": end, "steps": steps, "hold": hold, "change": change}
    stop = {"change": change, "iterations": calm, "fields": True}
    anneal = {"iterations": 300, "temperature": temperature, "stop": stop}
    table = job_table({"name": name, "causes": 3}, {"scheme": "exact"}, anneal)
    if name == "noisyor":
        Y, table["model"] = (Y > 2).astype(float), {"name": name, "causes": 3}
    _, first = problem_of(table, Y)
    fields = [first["W"]]
    found = fit(table, Y, watch=lambda params, settings, info: fields.append(params["W"]))
    cooled, still, expected = 0, 0, []
    for t in range(300):
        expected.append(start - cooled * (start - end) / steps)
        waiting = waits(fields[t], fields[t + 1], t, hold, change)
        still = 0 if cooled < steps or waits(fields[t], fields[t + 1], t, 0, change) else still + 1
        cooled = min(steps, cooled + (not waiting))
        if still == calm:
            break
    assert found.history["temperature"] == pytest.approx(expected)
    assert found.history["temperature"][-1] == end
    assert hold + steps + calm < len(expected) < 300  # it has waited


def test_schedules_have_settled_when_the_last_of_them_has():
    problem, _ = problem_with(
        {"iterations": 50, "temperature": [[0.1, 3.0], [0.8, 1.0]], "noise": {"W": [[0, 0.1], [45, 0.0]]}}
    )
    assert [problem.schedule.settled(t) for t in (39, 40, 44, 45)] == [False, False, False, True]
