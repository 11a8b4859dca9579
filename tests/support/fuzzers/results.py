"""Damaged results, and results with impossible values but a right checksum."""

from pathlib import Path

import numpy as np
from damaged_results import change, disturb, small_result, spoil

from parallel_et.runs.result import Result, job_of, load

MODELS = ("linca", "nmf", "mca")


def prepare(folder: Path) -> None:
    """Write a result of each model."""
    for name in MODELS:
        small_result(name).write(folder / f"{name}.h5")


def case(rng: np.random.Generator, folder: Path) -> None:
    """Damage the bytes or the HDF5 content of a result, then load it."""
    path = folder / "result.h5"
    content = (folder / f"{rng.choice(MODELS)}.h5").read_bytes()
    path.write_bytes(spoil(rng, content) if (as_bytes := rng.random() < 0.3) else content)
    if not as_bytes:
        change(path, lambda file: disturb(rng, file))
    result = load(path)
    assert not as_bytes or path.read_bytes() == content, "a damaged file is accepted"
    check(result)


def check(result: Result) -> None:
    """Check an accepted result."""
    W, sigma, pi = (result.params[name] for name in ("W", "sigma", "pi"))
    job, done = job_of(result.metadata, "result", {}), int(result.metadata["iteration"])
    assert W.shape == (result.metadata["D"], job.model.causes)
    assert np.isfinite(W).all()
    assert W.dtype == sigma.dtype == pi.dtype == np.float64
    assert job.model.name == "linca" or W.min() >= 0
    assert sigma.shape == pi.shape == ()
    assert 0 < sigma < np.inf
    assert 0 < pi < 1
    assert all(values.shape == (done,) for values in result.history.values())
    assert not done or np.isfinite(result.history["free_energy"]).all()
    assert all(len(values) == len(result.snapshots["iteration"]) for values in result.snapshots.values())
    assert all(np.isfinite(values).all() for values in result.truth.values())
