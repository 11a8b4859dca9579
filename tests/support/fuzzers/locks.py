"""Damaged locks, and other files and directories in their place."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from damaged_results import spoil

from parallel_et.storage import lock
from parallel_et.storage.lock import Lock

VALUES = (None, True, 0, -1, 1, 2**40, 10**30, 1.5, "", "1", "x" * 2000, "two\nlines", "../up", "/", "\udcff", [], {})


def prepare(folder: Path) -> None:
    """Return at once: no files are needed."""


def case(rng: np.random.Generator, folder: Path) -> None:
    """Take a lock that a live or dead job has left, or that is damaged, or something else."""
    lock.HEARTBEAT_SECONDS, lock.HEARTBEAT_TIMEOUT_SECONDS, lock.REREAD_SECONDS = 0.001, 0.005, 0.0
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    path, mine = run / "lock", Lock(run / "lock", "the run", lambda line: None)
    holder: dict[str, Any] = {**mine.me, "token": "t", "beat": "000000001"}
    if rng.random() < 0.5:
        holder["pid"] = int(rng.choice([1, 2**22, os.getpid(), 2**31 - 1]))
    for _ in range(rng.integers(0, 3)):
        key = str(rng.choice([*holder]))
        if rng.random() < 0.3:
            del holder[key]
            break
        holder[key] = VALUES[rng.integers(len(VALUES))]
    text = json.dumps(holder).encode()
    match rng.integers(12):
        case 0:
            path.symlink_to(rng.choice(["nowhere", "lock", "/dev/zero", ".", "/"]))
        case 1:
            path.mkdir()
        case 2:
            os.mkfifo(path)
        case 3:
            path.write_bytes(rng.bytes(int(rng.integers(0, 1 << 15))))
        case 4 | 5 | 6:
            path.write_bytes(spoil(rng, text))
        case 7:
            path.write_bytes(rng.choice([b"{}", b"[]", b"3", b"null", b"[" * 9000, b'{"a":' * 999]))
        case _:
            path.write_bytes(text)
    mine.take()
    assert mine.keep()
    mine.release()
    assert not list(run.iterdir())
