"""Settings of all tests: one BLAS thread, output of the root only, and an abort of all ranks after a failure."""

import json
import signal
import sys
from collections import Counter
from itertools import accumulate
from math import inf
from pathlib import Path

import pytest
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from parallel_et.control import signals

threadpool_limits(1)
DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of test files, as ``--store-durations`` has measured them. Files that are missing run first."""
QUICK_SECONDS = 60.0
"""Sum of the measured seconds of the files that ``--quick`` runs."""
measured = Counter()


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="run only the test files that take the least time")
    parser.addoption(
        "--store-durations", action="store_true", help=f"write the seconds of each file to {DURATIONS.name}"
    )


def pytest_collection_modifyitems(config, items):
    """Run slow files first, so that all workers end at about the same time."""
    seconds = json.loads(DURATIONS.read_text())
    names = sorted({file_of(item.nodeid) for item in items}, key=lambda name: (seconds.get(name, inf), name))
    if config.getoption("quick"):
        sums = accumulate(seconds.get(name, inf) for name in names)
        names = [name for name, total in zip(names, sums, strict=True) if total <= QUICK_SECONDS]
        skipped = [item for item in items if file_of(item.nodeid) not in names]
        config.hook.pytest_deselected(items=skipped)
        items[:] = [item for item in items if file_of(item.nodeid) in names]
    items.sort(key=lambda item: -names.index(file_of(item.nodeid)))


def pytest_runtest_logreport(report):
    measured[file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    if session.config.getoption("store_durations") and not hasattr(session.config, "workerinput"):
        rounded = {name: round(seconds, 1) for name, seconds in measured.items()}
        known = {**json.loads(DURATIONS.read_text()), **rounded}
        DURATIONS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def file_of(nodeid):
    return nodeid.partition("::")[0].removeprefix("tests/")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if MPI.COMM_WORLD.rank > 0:  # only the root prints
        config.pluginmanager.unregister(config.pluginmanager.get_plugin("terminalreporter"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and MPI.COMM_WORLD.size > 1:
        print(f"rank {MPI.COMM_WORLD.rank}: {item.nodeid}\n{report.longrepr}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)
    return report


@pytest.fixture(autouse=True)
def own_signals():
    """Reset signal handlers before and after each test, because commands in this process change them."""
    reset_signals()
    yield
    reset_signals()


def reset_signals():
    if signals._listener is not None:
        signals._listener.stop()
        signals._listener = None
        for number in signals.SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
