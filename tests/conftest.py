"""Settings of all tests: one BLAS thread, output of the root only, and an abort of all ranks after a failure."""

import signal
import sys

import pytest
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from parallel_et.control import signals

threadpool_limits(1)
LONG = (
    "test_slurm",
    "test_box",
    "test_compile",
    "test_soak",
    "test_fuzz",
    "test_relations",
    "test_patches",
    "test_launch",
    "test_stop",
    "test_trials",
    "test_bits",
    "test_faults",
    "test_kept",
    "test_examples",
    "test_memory",
    "test_estimator",
)
"""Slow test files. They run first, so that all workers end at about the same time."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


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
