"""Runs every fuzzer for some seconds with the seed of the day; ``make fuzz`` runs 10,000 cases of each."""

import subprocess
import sys
from pathlib import Path

import fuzz
import pytest

SECONDS = 50.0 / max(1, len(fuzz.kinds()))
HOSTILE = """
import os, signal
import numpy as np
from parallel_et.errors import UserError

def prepare(folder):
    (folder / "turn").write_text("0")

def case(rng, folder):
    turn = folder / "turn"
    number = int(turn.read_text())
    turn.write_text(str(number + 1))
    if number == 1:
        raise UserError("thing: expected a number, found none")
    if number == 2:
        raise UserError("two\\nlines")
    if number == 3:
        raise ValueError("not foreseen")
    if number == 4:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 5:
        os._exit(0)
    if number == 6:
        np.ones(2**28)
    if number == 7:
        while True:
            pass
"""


@pytest.mark.parametrize("kind", fuzz.kinds())
def test_damaged_input_is_refused_in_one_line_or_harmless(kind):
    seed = fuzz.today()
    outcome = fuzz.fuzz(kind, seed, seconds=SECONDS)
    assert not outcome.wrong, f"python tests/support/fuzz.py {kind} --seed {seed} --case {outcome.wrong}"
    assert outcome.counts.total() > 0


def test_a_fuzzer_reports_crashes_hangs_wrong_refusals_and_memory_and_continues(tmp_path):
    (tmp_path / "fuzzers").mkdir()
    (tmp_path / "fuzzers/hostile.py").write_text(HOSTILE)
    text = Path(fuzz.__file__).read_text()
    assert "\nMAX_WORK_SECONDS = 10.0\n" in text
    (tmp_path / "fuzz.py").write_text(text.replace("\nMAX_WORK_SECONDS = 10.0\n", "\nMAX_WORK_SECONDS = 3.0\n"))
    command = [sys.executable, tmp_path / "fuzz.py", "--cases", "9", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    row, *wrong = done.stdout.splitlines()[2:]
    assert row.split()[:5] == ["hostile", "9", "1", "2", "6"]
    words = [
        "refused with 'two",
        "ValueError",
        "ended with -11",
        "ended with 0",
        "MemoryError",
        "3 s of work",
    ]
    for number, (line, expected) in enumerate(zip(wrong, words, strict=True), 2):
        assert f"hostile --seed 7 --case {number}: " in line
        assert expected in line
