"""The remaining time of a batch job."""

import time

import pytest

from parallel_et.control.process import process_age_seconds
from parallel_et.control.stopping import EXIT_MARGIN_SECONDS, Request, StopMonitor


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_the_time_left_does_not_depend_on_the_clock_of_the_day(ahead, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1000 - ahead))
    monkeypatch.setenv("PARALLEL_ET_TIME_LEFT", str(int(process_age_seconds()) + 1000))
    stopping = StopMonitor()
    assert stopping.requested(0) == Request.NONE
    assert stopping.requested(1000 - EXIT_MARGIN_SECONDS - 30) == Request.NONE
    assert stopping.requested(1000 - EXIT_MARGIN_SECONDS) == Request.TIME
