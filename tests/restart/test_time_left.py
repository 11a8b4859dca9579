"""How long a batch system lets a job run."""

import time

import pytest

from parallel_et.control.process import age
from parallel_et.control.stopping import MARGIN, Stopping, Wish


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_the_time_left_does_not_depend_on_the_clock_of_the_day(ahead, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1000 - ahead))
    monkeypatch.setenv("PARALLEL_ET_TIME_LEFT", str(int(age()) + 1000))
    stopping = Stopping()
    assert stopping.wish(0) == Wish.NONE
    assert stopping.wish(1000 - MARGIN - 30) == Wish.NONE
    assert stopping.wish(1000 - MARGIN) == Wish.TIME
