"""Run directories with damaged or replaced checkpoints, results or jobs."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from damaged_results import change, disturb, small_result, spoil
from fuzzers.results import check

from parallel_et.runs.directory import RunDirectory


def prepare(folder: Path) -> None:
    """Write a run with two checkpoints and a result."""
    result = small_result()
    (folder / "sound/checkpoints").mkdir(parents=True)
    (folder / "sound/job.toml").write_text(result.metadata["job"])
    for name in ("checkpoints/000002.h5", "checkpoints/000003.h5", "result.h5"):
        replace(result, metadata={**result.metadata, "host": name}).write(folder / "sound" / name)


def case(rng: np.random.Generator, folder: Path) -> None:
    """Damage some files, then do what commands do: inspect the directory, load the result, or find a checkpoint."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(folder / "sound", run)
    files = [path for path in run.rglob("*") if path.is_file()]
    for path in (files[i] for i in rng.permutation(len(files))[: rng.integers(1, 5)]):
        match rng.integers(8):
            case 0:
                path.unlink()
            case 1:
                path.unlink()
                path.symlink_to(rng.choice(["nowhere", path.name, "../..", "/dev/null", folder / "sound/result.h5"]))
            case 2:
                path.unlink()
                path.mkdir()
            case 3 | 4 if path.suffix == ".h5":
                change(path, lambda file: disturb(rng, file))
            case _:
                path.write_bytes(spoil(rng, path.read_bytes()))
    directory = RunDirectory(str(run))
    match rng.integers(3):
        case 0:
            directory.check_path()
            directory.stored_job()
        case 1:
            check(directory.latest()[0])
        case _:
            lines: list[str] = []
            path, result = directory.checkpoints.newest(lambda result: None, lines.append)
            check(result)
            assert all(line.isprintable() for line in lines)
            assert path == max(directory.checkpoints.newest_first())
