"""Damaged files of trials, and files with impossible values but a right checksum."""

from pathlib import Path

import numpy as np
from damaged_results import change, disturb, small_result, spoil

from parallel_et.storage.atomic import hdf5_image
from parallel_et.storage.checksum import write_with_checksum
from parallel_et.trials.table import COLUMNS, Trial, read_trials


def prepare(folder: Path) -> None:
    """Write a file of three trials."""
    result = small_result()
    trials = [Trial(seed, 2, 1, 0.5, -7.0, 3, 0.1, result.params) for seed in (1, 2, 3)]
    columns = {name: np.array([getattr(trial, name) for trial in trials]) for name in COLUMNS}
    columns |= {name: np.array([trial.params[name] for trial in trials]) for name in result.params}
    write_with_checksum(folder / "sound.h5", hdf5_image({"": columns}, {"job": result.metadata["job"], "name": "job"}))


def case(rng: np.random.Generator, folder: Path) -> None:
    """Damage the bytes or the HDF5 content of the file, then read it."""
    path, content = folder / "trials.h5", (folder / "sound.h5").read_bytes()
    path.write_bytes(spoil(rng, content) if (as_bytes := rng.random() < 0.3) else content)
    if not as_bytes:
        change(path, lambda file: disturb(rng, file))
    _, trials = read_trials(path)
    assert not as_bytes or path.read_bytes() == content, "a damaged file is accepted"
    for trial in trials:
        assert trial.params["W"].ndim == 2
        assert all(np.isfinite(value).all() for value in trial.params.values())
        assert trial.seed >= 0
        assert isinstance(trial.seed, int)
        assert trial.params["sigma"] > 0
        assert 0 < trial.params["pi"] < 1
