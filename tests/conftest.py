"""Shared by all tests: one BLAS thread, quiet ranks, and a failure on one rank that ends all."""

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
"""Files that take long begin first, so that all workers end at about the same time."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if MPI.COMM_WORLD.rank > 0:  # the root speaks for all
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
    """What commands in this process hear is forgotten before and after each test, also if a fixture has run them."""
    forget()
    yield
    forget()


def forget():
    if signals._listener is not None:
        signals._listener.end()
        signals._listener = None
        for number in signals.SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
