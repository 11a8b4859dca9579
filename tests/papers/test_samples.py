"""The picture of final free energies over the number of samples."""

import numpy as np

from parallel_et import fit
from parallel_et.papers.samples import draw_free_energies, write_sample_curve
from parallel_et.parallel.communicator import Ranks


def test_the_curve_is_sorted_by_the_number_of_samples():
    (axis,) = draw_free_energies({4000: 3.0, 400: 1.0, 2000: 2.0}).axes
    x, y = axis.lines[0].get_data()
    np.testing.assert_array_equal(x, [400, 2000, 4000])
    np.testing.assert_array_equal(y, [1.0, 2.0, 3.0])


def test_the_curve_of_runs_is_written(tmp_path):
    for samples in (20, 40):
        job = {
            "model": {"name": "linca", "causes": 4},
            "inference": {"scheme": "sample", "samples": samples, "chains": 1},
            "anneal": {"iterations": 2},
        }
        fit(job, data=np.random.default_rng(1).normal(0, 1.0, (30, 6)), output=tmp_path / str(samples))
    write_sample_curve(Ranks.self_only(), [tmp_path / "20", tmp_path / "40"], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
