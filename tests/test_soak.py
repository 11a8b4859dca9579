"""A small soak; ``make soak`` runs the large one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import soak
from every_model import SCHEME_KEYS, names
from launch import CLEAN, here
from soaking.cases import Case, all_cases, make_case
from soaking.tally import Tally
from soaking.training import KINDS, Training

from parallel_et.schemes import SCHEMES


def test_runs_disturbed_in_many_ways_on_many_numbers_of_ranks_end_with_the_same_bits():
    """Run eight disturbances of random kinds."""
    assert soak.soak(8, seed=int.from_bytes(os.urandom(4), "little"), jobs=2)


def test_every_model_and_every_scheme_is_disturbed():
    pairs = [case for case in all_cases(random.Random(1)) if isinstance(case, tuple)]
    assert {model["name"] for model, _ in pairs if "name" in model} == set(names())
    assert {scheme for _, scheme in pairs} == set(SCHEMES.names()) >= set(SCHEME_KEYS)


def test_all_cases_can_be_built():
    rng = random.Random(1)
    assert all(isinstance(make_case(case, rng), Case) for case in all_cases(rng))


def test_a_loss_and_another_bit_are_noticed():
    tally, rng = Tally(2), random.Random(1)
    with Training(make_case("kept", rng), tally, rng, here) as run:
        assert run.prepare()
        assert run.disturb("one rank killed amid iterations", 20)
        assert tally.good
        run.history["free_energy"] = np.nextafter(run.history["free_energy"], 0.0)
        run.check_history()
        assert tally.wrong == {"one rank killed amid iterations": 1}
        for path in run.checkpoints():
            path.write_bytes(b"")
        assert run.disturb("one rank killed at the start", 20)
        assert tally.lost == {"one rank killed at the start": 1}


def test_a_soak_that_is_ended_early_prints_its_table_and_leaves_nothing(tmp_path):
    command = [sys.executable, str(Path(soak.__file__)), "--disturbances", "99", "--jobs", "2"]
    env = {**CLEAN, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "")
        first = next(line for line in lines if "of 99" in line)
        process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        said = "".join(lines)
    assert any(kind in first for kind in KINDS)
    assert "disturbance " in said
    assert " of 99 disturbances, " in said.splitlines()[-1]
    assert process.returncode == 0, said
    assert time.monotonic() - asked < 60
    assert list(tmp_path.glob("soak-*")) == []
