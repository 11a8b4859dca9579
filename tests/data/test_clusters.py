"""Round clusters: drawn points have the requested distribution."""

import numpy as np
import pytest

from parallel_et.data.clusters import Clusters, ClustersOptions
from parallel_et.errors import UserError
from parallel_et.job.job import check_job


def test_points_lie_around_the_centres_that_are_the_truth():
    source = Clusters(ClustersOptions(points=3000, clusters=4, dims=3, apart=20.0, sigma=0.5), 7, None)
    points, member = source.group(0)
    centres = source.truth()["W"].T
    assert centres.shape == (4, 3)
    gaps = points - centres[member.argmax(1)]
    assert (member.sum(1) == 1).all()
    assert np.std(gaps) == pytest.approx(0.5, rel=0.05)
    assert member.mean(0) == pytest.approx(np.full(4, 0.25), abs=0.05)
    other = Clusters(ClustersOptions(points=3000, clusters=4, dims=3, apart=20.0, sigma=0.5, seed=7), 8, None)
    assert other.group(0)[0].tobytes() == points.tobytes()


def test_more_than_memory_holds_is_refused_in_one_line():
    data = {"source": "clusters", "points": 10, "clusters": 10**7, "dims": 100}
    with pytest.raises(UserError, match=r"^job: data.clusters: expected at most \d+ numbers in all centres together"):
        check_job({"model": {"name": "gmm", "causes": 2}, "data": data, "inference": {"scheme": "exact"}})
