"""Errors of strengths at the scale of the true fields, and comparison of codes of strokes."""

import numpy as np
import pytest

from parallel_et.papers.strengths import build_row, relative_errors, slab_errors
from parallel_et.papers.strokes import stroke_rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.trials.runner import TrialsOptions
from parallel_et.trials.table import Trial

JOB = """
[model]
name = "ssmca"
causes = 4
[data]
source = "strokes"
points = 200
image = 40
size = 4
strokes = 20
[inference]
scheme = "sample"
samples = 24
chains = 1
[anneal]
iterations = 2
"""


def test_errors_do_not_depend_on_the_scale_or_order_of_fields():
    truth = {"W": np.array([[10.0, 0.0], [10.0, 0.0], [0.0, 10.0]]), "sigma": 2.0, "pi": 0.2, "mu": 1.0, "psi": 0.0625}
    learned = {**truth, "W": truth["W"][:, ::-1] / 5, "mu": np.array(5.0), "psi": np.array(25 * 0.0625)}
    np.testing.assert_allclose(relative_errors(learned, truth), 0.0, atol=1e-12)
    off = relative_errors({**learned, "mu": np.array(5.5), "sigma": np.array(1.9)}, truth)
    np.testing.assert_allclose(off, [-0.05, 0.0, 0.1, 0.0], atol=1e-12)


def test_a_trial_counts_if_all_causes_are_found_and_all_parameters_are_close():
    trials = [Trial(seed, 6, found, 0.1, 0.0, np.nan, 3, 1.0, {}) for seed, found in ((1, 6), (2, 5), (3, 6))]
    off = np.array([[0.01, 0.02, 0.03, -0.04], [0.0, 0.0, 0.0, 0.0], [0.01, 0.0, 0.0, 0.06]])
    row = build_row("bars", trials, off)
    assert row.measured == (
        "all causes in 2 of 3, all within 5% too in 1, with the root of psi in 2, sigma within 1.0%, "
        "pi within 2.0%, mu within 3.0%, psi within 6.0%"
    )
    assert row.verdict == "worse"


def test_the_slab_is_learned_with_all_other_parameters_known(tmp_path):
    bars = 'source = "bars"\npoints = 400\ngrid = 3\nstd = 2.5\noverlap = "max"\n[inference]'
    data = JOB[JOB.index("source") : JOB.index("[inference]")]
    (tmp_path / "job.toml").write_text(JOB.replace(data + "[inference]", bars).replace("causes = 4", "causes = 6"))
    off = slab_errors(str(tmp_path / "job.toml"), [], range(7, 9), Ranks())
    assert off.shape == (2, 2)
    assert (np.abs(off) < [0.05, 0.25]).all()
    assert (off != 0).all()


def test_strokes_have_causal_and_linear_codes(tmp_path):
    pytest.importorskip("sklearn")
    (tmp_path / "job.toml").write_text(JOB)
    experiment = {"job": "strokes", "variants": {"own": []}, "penalties": [50], "at_most": [1]}
    experiment |= {"published": {"own": "sparser"}}
    options = TrialsOptions(str(tmp_path / "job.toml"), ["run.seed=5"], 1)
    rows = stroke_rows(Ranks(), experiment, options, tmp_path / "strokes", range(5, 6))
    assert [row.job for row in rows] == ["strokes: own", "strokes: linear, a = 50", "strokes: linear, at most 1"]
    assert "components per patch, MSE" in rows[0].measured
    assert rows[0].verdict in ("met", "worse")
    assert (tmp_path / "strokes.png").exists()
