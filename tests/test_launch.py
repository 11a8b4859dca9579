"""The start of a command: signals stop it, and a missing rank ends the other ranks."""

import os
import signal
import sys

import numpy as np
import pytest
from launch import call, ended, launch, ranks_of, start, train, wait_for, with_startup_code

from parallel_et.__main__ import COMMANDS
from parallel_et.control.signals import STOPPED_BEFORE_START
from parallel_et.launch import STOPPABLE_COMMANDS
from parallel_et.parallel.watched_start import START_LIMIT_VARIABLE

JOB = """
[model]
name = "linca"
causes = 4
[data]
source = "data.npy"
[inference]
candidates = 3
gamma = 2
[anneal]
iterations = 20
"""
AT_IMPORT = """
import os, sys, time
rank = os.environ.get("PMI_RANK", "0")
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(hook)
            {action}
hook = Hook()
sys.meta_path.insert(0, hook)
"""
WAIT = """open("here" + rank, "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
            time.sleep(0.1)  # time for signals that came meanwhile"""
HANG = """while rank == "{rank}":
                time.sleep(1)"""
SECONDS = 6
"""Time that ranks wait for each other at the start in these tests."""


@pytest.fixture
def place(tmp_path):
    np.save(tmp_path / "data.npy", np.random.default_rng(1).normal(size=(100, 6)))
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def at_import(place, module, action):
    """Return an environment in which every rank runs an action when it starts to load a module."""
    return with_startup_code(place, AT_IMPORT.format(module=module, action=action))


@pytest.mark.parametrize(
    "module, number, receiver",
    [
        ("mpi4py", signal.SIGTERM, "one rank"),
        ("mpi4py", signal.SIGUSR1, "mpirun"),
        ("numpy", signal.SIGUSR2, "one rank"),
        ("numpy", signal.SIGTERM, "mpirun"),
        ("numba", signal.SIGUSR1, "one rank"),
        ("parallel_et.cli.train", signal.SIGUSR1, "all ranks"),
    ],
)
def test_a_signal_while_packages_are_loaded_stops_it_before_it_starts(place, module, number, receiver):
    process = start(2, "job.toml", cwd=place, **at_import(place, module, WAIT))
    wait_for(lambda: len(list(place.glob("here?"))) == 2, process)
    pids = ranks_of(place)
    for pid in {"mpirun": [process.pid], "one rank": pids[1:], "all ranks": pids}[receiver]:
        os.kill(pid, number)
    (place / "go").touch()
    _, code, said = ended(process, place)
    assert code == 75, said
    assert said.count(STOPPED_BEFORE_START) == 1
    assert not (place / "runs").exists()
    assert train(1, "job.toml", cwd=place).returncode == 0


def test_a_signal_while_data_are_read_stops_training_before_its_first_iteration(place):
    code = """
import os, time
import parallel_et.runs.trainer as module
made = module.set_up
def set_up(*args):
    open("here", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    time.sleep(0.1)
    return made(*args)
module.set_up = set_up
"""
    process = start(None, "job.toml", "--fresh", cwd=place, **with_startup_code(place, code))
    wait_for((place / "here").exists, process)
    process.send_signal(signal.SIGUSR1)
    (place / "go").touch()
    _, code, said = ended(process, place)
    assert code == 75, said
    assert STOPPED_BEFORE_START in said
    assert not (place / "runs").exists()


def test_a_signal_after_all_is_done_changes_nothing(place):
    code = """
import os, signal, sys
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR2):
        kill(pid, number)
sys.late = Late()  # deleted while Python shuts down, after it has restored the handlers
"""
    done = train(1, "job.toml", cwd=place, **with_startup_code(place, code))
    assert done.returncode == 0, done.stderr
    assert "result" in done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name in STOPPABLE_COMMANDS if name != "train"])
def test_every_stoppable_command_listens_before_it_loads_packages(place, name):
    waiting = at_import(place, "mpi4py", WAIT)
    process = start(None, "--help", cwd=place, name=name, **waiting)  # started by parallel-et
    wait_for((place / "here0").exists, process)
    process.send_signal(signal.SIGUSR2)
    (place / "go").touch()
    _, code, said = ended(process, place)
    assert (code, said) == (75, STOPPED_BEFORE_START + "\n")


def test_the_stoppable_commands_are_the_ones_with_a_time_limit():
    assert {name for name in COMMANDS if "--max-time" in call(name, "--help").stdout} == set(STOPPABLE_COMMANDS)


def test_a_script_that_uses_the_library_keeps_its_signals(place):
    (place / "script.py").write_text(
        "import signal, numpy as np\n"
        "from parallel_et import fit\n"
        "from parallel_et.control.signals import SIGNALS\n"
        "before = [signal.getsignal(number) for number in SIGNALS]\n"
        "fit('job.toml', output='run')\n"
        "assert [signal.getsignal(number) for number in SIGNALS] == before\n"
        "assert signal.set_wakeup_fd(-1) == -1\n"
    )
    done = launch(None, "script.py", cwd=place)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_hangs_while_it_loads_packages_is_named_and_ends_all(place, rank):
    hanging = at_import(place, "scipy.linalg", HANG.format(rank=rank))
    done = train(3, "job.toml", cwd=place, **hanging, **{START_LIMIT_VARIABLE: str(SECONDS)})
    assert done.returncode == 1
    message = (
        f"start: expected all 3 ranks within {SECONDS} s ({START_LIMIT_VARIABLE}), found no message of rank {rank}; "
    )
    assert (done.stdout + done.stderr).count("start: expected") == 1
    assert message in done.stderr
    assert not (place / "runs").exists()


def test_a_rank_that_does_not_start_mpi_ends_all(place):
    hanging = at_import(place, "mpi4py", HANG.format(rank=1))
    done = train(3, "job.toml", cwd=place, **hanging, **{START_LIMIT_VARIABLE: str(SECONDS)})
    assert done.returncode not in (0, 2, 75)
    assert done.stderr.count(f"Timeout (0:00:0{SECONDS})!") == done.stderr.count(" in start_mpi") == 1
    assert not (place / "runs").exists()


def test_the_time_for_compilation_is_unlimited(place):
    slow = f"""
import os, time
import parallel_et.kernels.cache as module
load = module.load_declared
def slowly():
    time.sleep({2 * SECONDS} if os.environ["PMI_RANK"] == "0" else 0)
    load()
module.load_declared = slowly
"""
    done = train(2, "job.toml", cwd=place, **with_startup_code(place, slow), **{START_LIMIT_VARIABLE: str(SECONDS)})
    assert done.returncode == 0, done.stderr


def test_little_memory_on_one_rank_ends_all(place):
    (place / "limited.sh").write_text(
        f'[ "$PMI_RANK" = 1 ] && ulimit -v "$1"\nexec {sys.executable} -m parallel_et.train job.toml\n'
    )
    limit = {START_LIMIT_VARIABLE: str(SECONDS)}
    for size in (300_000, 440_000, 460_000, 500_000, 540_000):  # at some of these sizes BLAS hangs
        done = launch(
            3, "-c", "import os, sys; os.execvp('bash', sys.argv[1:])", "bash", "limited.sh", size, cwd=place, **limit
        )
        assert done.returncode not in (0, 75), done.stderr
