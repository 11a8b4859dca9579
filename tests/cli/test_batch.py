"""The command slurm, and the check that the ranks of a start are connected."""

import re
import subprocess
import sys

import numpy as np
import pytest
from launch import CLEAN, MPIRUN, TIMEOUT_SECONDS, call, launch

from parallel_et.cli.slurm import expected
from parallel_et.job.job import read_job

JOB = """
[model]
name = "linca"
causes = 20
[data]
source = "data.npy"
[inference]
candidates = 5
gamma = 3
[anneal]
iterations = 3
"""
CODE = """
import atexit
from parallel_et.launch import start
from parallel_et.control.process import peak_bytes
atexit.register(lambda: print(peak_bytes()))
start("train", ["job.toml", "--quiet"])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    table = np.lib.format.open_memmap(place / "data.npy", "w+", np.float32, (200_000, 96))
    table[:] = np.random.default_rng(1).standard_normal(table.shape, np.float32)
    table.flush()
    return place / "data.npy"


@pytest.fixture
def place(data, tmp_path):
    (tmp_path / "data.npy").symlink_to(data)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def batch(place, *args):
    return call("slurm", "job.toml", *args, cwd=place)


SIZES = ("--nodes", 3, "--ntasks-per-node", 8, "--time", "4:00:00")


def test_the_script_is_the_template_with_its_lines_filled_in(place):
    done = batch(place, *SIZES, "--set", "run.threads=2", "--output", "runs/my run")
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "#SBATCH --job-name=job",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --time=4:00:00",
        "#SBATCH --requeue",
        "supervise job.toml --set run.threads=2 --output 'runs/my run' \"$@\"",
    ):
        assert line in done.stdout.splitlines()
    assert "--mem-per-cpu" not in done.stdout
    assert int(re.findall(r"--mem=(\d+)M", done.stdout)[0]) in range(8 * 250, 8 * 330)


def test_the_script_for_mpirun(place):
    done = batch(place, *SIZES, "--mpirun")
    assert done.returncode == 0, done.stderr
    assert 'LAUNCH=("$MPIRUN" -n "$SLURM_NTASKS")' in done.stdout
    assert 'supervise job.toml "$@"' in done.stdout


def test_a_script_that_is_there_is_not_overwritten(place):
    assert batch(place, *SIZES, "--write", "job.sbatch").returncode == 0
    done = batch(place, *SIZES, "--write", "job.sbatch")
    assert done.returncode == 2
    assert done.stderr == "job.sbatch: expected a place for a new file, found File exists\n"


WORDS = """
supervise() { printf '%s\\0' "$@"; }
eval "$(sed -n '/^supervise /,$p' job.sbatch)"
"""


@pytest.mark.parametrize("mpirun", [False, True])
@pytest.mark.parametrize(
    "folder", ["a\ntouch owned\n#", "$(touch owned)`touch owned`", 'it\'s "so"; touch owned', "-n"]
)
def test_no_shell_executes_what_stands_in_a_path(place, folder, mpirun):
    job, run = f"{folder}/job.toml", f"{folder}/run"
    (place / folder).mkdir()
    (place / job).write_text(JOB)
    options = ("--output=" + run, "--set", "data.points=1000", "--write", "job.sbatch", *["--mpirun"] * mpirun)
    done = call("slurm", *SIZES, *options, "--", job, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    stopped = subprocess.run(["bash", "job.sbatch"], cwd=place, env={**CLEAN, "PYTHON": "false"}, capture_output=True)
    assert stopped.returncode == 2
    words = subprocess.run(["bash", "-c", WORDS], cwd=place, env=CLEAN, capture_output=True, text=True)
    dots = "./" * folder.startswith("-")
    assert words.stdout.split("\0")[:-1] == [dots + job, "--set", "data.points=1000", "--output", dots + run]
    assert not (place / "owned").exists()


@pytest.mark.parametrize("name", ["a\ntouch owned\n#.toml", "a\r#.toml", "a\u2028b.toml", "job"])
def test_a_name_that_no_batch_script_can_have_is_refused_in_one_line(place, name):
    (place / name).write_text(JOB)
    done = call("slurm", name, *SIZES, "--write", "job.sbatch", cwd=place)
    assert done.returncode == 2
    assert re.fullmatch(r".*: expected a name (without control characters|that ends in \.toml), .*\n", done.stderr)
    assert not (place / "job.sbatch").exists()


def test_more_ranks_than_blocks_are_told_of(place):
    done = batch(place, *SIZES, "--set", "data.points=100")
    assert done.returncode == 0
    assert (
        done.stderr == "warning: job.toml: expected at most 4 ranks, found 24: the other ranks would have no points\n"
    )


def test_the_memory_is_enough_and_not_half_as_much_again(place, monkeypatch):
    monkeypatch.chdir(place)
    demand = expected(read_job("job.toml"), ranks=1)
    done = launch(None, "-c", CODE, cwd=place)
    assert done.returncode == 0, done.stderr
    needed = float(done.stdout)
    assert needed < demand.memory + demand.root < 1.5 * needed


def test_ranks_that_were_started_separately_are_refused_in_one_line(place):
    alone = ["env", "-u", "PMI_FD", "-u", "PMI_PORT", sys.executable, "-m", "parallel_et.train", "job.toml"]
    done = subprocess.run(
        [MPIRUN, "-n", "3", *alone], cwd=place, env=CLEAN, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("expected 3 ranks, found 3 times rank 0 of 1") == 1
    assert done.stderr.count("\n") == 1
