"""Free energies over the number of samples: what is drawn of runs at their ends."""

import numpy as np

from parallel_et import fit
from parallel_et.papers.samples import curve, draw_curve
from parallel_et.parallel.communicator import Ranks


def test_the_curve_goes_by_the_number_of_samples():
    (axis,) = curve({4000: 3.0, 400: 1.0, 2000: 2.0}).axes
    x, y = axis.lines[0].get_data()
    np.testing.assert_array_equal(x, [400, 2000, 4000])
    np.testing.assert_array_equal(y, [1.0, 2.0, 3.0])


def test_it_is_drawn_of_runs(tmp_path):
    for samples in (20, 40):
        job = {
            "model": {"name": "linca", "causes": 4},
            "inference": {"scheme": "sample", "samples": samples, "chains": 1},
            "anneal": {"iterations": 2},
        }
        fit(job, data=np.random.default_rng(1).normal(0, 1.0, (30, 6)), output=tmp_path / str(samples))
    draw_curve(Ranks.alone(), [tmp_path / "20", tmp_path / "40"], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
