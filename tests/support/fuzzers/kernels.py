"""Damaged or replaced files and directories in the cache of compiled kernels."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from damage import spoil

from parallel_et.errors import UserError
from parallel_et.kernels import cache, cache_files, kernel

UNPRIVILEGED_USER = 65534
SECONDS = 50
"""Seconds of a process that loads the kernel."""


@kernel("f8(f8, i8)")
def add(x, n):
    """Compute x * x + n; compiles quickly."""
    return x * x + n


@kernel("f8(f8, i8)")
def subtract(x, n):
    """Compute x * x - n, with the same types as ``add``, so that Numba's preparations serve both."""
    return x * x - n


NAME, OTHER = f"kernels.add{cache.SUFFIX}", f"kernels.subtract{cache.SUFFIX}"


def prepare(folder: Path) -> None:
    """Write the files of both kernels to a cache that other users may read."""
    folder.chmod(0o755)
    (folder / "tmp").mkdir()
    use_cache(folder / "sound", folder / "tmp")
    subtract.load()
    in_children(lambda: [add.load() and ""])
    assert {path.name for path in (folder / "sound").rglob("*.*")} == {NAME, OTHER}


def case(rng: np.random.Generator, folder: Path) -> None:
    """Damage one or both of two cache folders, then load and run the kernel in other processes."""
    use_cache(folder / "sound", folder / "tmp")
    subtract.load()  # children inherit what Numba prepares once a process
    sound, here = folder / "sound" / cache.directory_name(), folder / "case"
    shutil.rmtree(here, ignore_errors=True)
    (here / "tmp").mkdir(parents=True)
    (here / "tmp").chmod(0o1777)
    user = UNPRIVILEGED_USER if os.getuid() == 0 and rng.random() < 0.2 else os.getuid()
    places = [here / "told", here / f"tmp/parallel_et-{user}"][: 2 if rng.random() < 0.7 else 1]
    for place in places:
        place.mkdir(0o755)
        shutil.copytree(sound, place / sound.name)
    if len(places) == 2:
        os.chown(places[1], user, -1)
    for place in places if rng.random() < 0.3 else places[:1]:
        damage(rng, place / sound.name, sound)
    use_cache(here / "told", here / "tmp")
    lines = in_children(lambda: run(user), 2 if rng.random() < 0.1 else 1)
    assert not [*here.rglob("*.part")], "something is left behind"
    if lines:
        raise UserError(lines[0])


def use_cache(configured: Path, temporary: Path) -> None:
    """Set the folders of the cache."""
    os.environ |= {"NUMBA_CACHE_DIR": str(configured), "TMPDIR": str(temporary)}
    tempfile.tempdir = None
    cache.standard_directories.cache_clear()


def damage(rng: np.random.Generator, directory: Path, sound: Path) -> None:
    """Replace or damage the kernel's file, or rarely its directory."""
    path = directory / NAME
    content = path.read_bytes()
    links = "nowhere", path.name, "..", "/dev/zero", str(sound / NAME), str(sound / OTHER)
    match rng.integers(16):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(bytes(int(rng.integers(0, 2 * len(content)))))
        case 2:
            path.write_bytes(rng.bytes(int(rng.integers(0, 2 * len(content)))))
        case 3:
            path.write_bytes((sound / OTHER).read_bytes())
        case 4:
            path.write_bytes(
                cache_files.head_of(directory.with_name("older") / NAME, content) + content[cache_files.HEAD :]
            )
        case 5:
            path.write_bytes(content[cache_files.HEAD :])
        case 6:
            path.unlink()
            os.mkfifo(path)
        case 7:
            path.unlink()
            path.symlink_to(str(rng.choice(links)))
        case 8:
            path.unlink()
            (path / "full" if rng.random() < 0.5 else path).mkdir(parents=True)
        case 9:
            path.chmod(0)
        case 10:
            shutil.rmtree(directory)
            match rng.integers(3):
                case 0:
                    directory.write_bytes(content)
                case 1:
                    directory.symlink_to(str(rng.choice(["nowhere", directory.name, "/dev/null", sound])))
        case _:
            path.write_bytes(spoil(rng, content))


def run(user: int) -> list[str]:
    """Load the kernel as a user and run it; return the warnings."""
    if user != os.getuid():
        os.setgroups([])
        os.setuid(user)
    cache.used.clear()
    lines = cache.notes()
    cache.load_declared()
    lines += cache.notes()
    assert [add(1.5, 4), add(-2.0, -3), add(0.0, 0)] == [6.25, 1.0, 0.0], "wrong numbers"
    assert cache.used or cache.unsaved, "neither loaded nor stored"
    return lines


def in_children(work: Callable[[], list[str]], number: int = 1) -> list[str]:
    """Run ``work`` in forked processes at the same time; return all lines, and raise their errors."""
    children = []
    for _ in range(number):
        end, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(SECONDS)
            try:
                answer = json.dumps(work())
            except BaseException as error:
                answer = json.dumps(repr(error))
            os.write(into, answer.encode())
            os._exit(0)
        os.close(into)
        children.append((pid, end))
    answers = []
    for pid, end in children:
        with open(end) as pipe:
            answers.append(pipe.read())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == 0, f"a process that loads the kernel ended with {code}"
    lines = [json.loads(answer) for answer in answers]
    assert all(isinstance(some, list) for some in lines), lines
    return [line for some in lines for line in some]
