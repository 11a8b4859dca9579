"""A run that is read from its directory: job, model, scheme, and the newest parameters."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.core.types import Params
from parallel_et.data.base import Centred, Source
from parallel_et.job.job import Job
from parallel_et.parallel.communicator import Ranks
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.result import Result, job_of
from parallel_et.runs.setup import model_of


class StoredRun(NamedTuple):
    """A finished or unfinished run.

    Attributes
    ----------
    result : the whole result on the root; parameters, metadata and the mean of the data on other ranks
    file : name of the file of the result or checkpoint
    """

    job: Job
    model: Model
    scheme: Scheme
    result: Result
    file: str

    @property
    def params(self) -> Params:
        """The learned parameters."""
        return self.result.params

    @property
    def mean(self) -> np.ndarray | None:
        """The mean (D,) that was subtracted from the training data; None without ``data.centre``."""
        return self.result.data.get("mean")

    def centred(self, source: Source) -> Source:
        """Return a source of points, less the mean of the training data if the run subtracted it."""
        return source if self.mean is None else Centred(source, self.mean)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the result."""
        return self.result.metadata


def read_stored_run(
    directory: RunDirectory, files: Mapping[str, str], log: Callable[[str], None] = lambda line: None
) -> StoredRun:
    """Read the result of a run, or its newest valid checkpoint.

    ``files`` maps sections of the job to the files of a custom model or scheme that may be executed.
    """
    result, file = directory.latest()
    log(f"{directory.path}: the parameters of {file}, after {result.metadata['iteration']} iterations")
    job = job_of(result.metadata, file, files)
    return StoredRun(job, *model_of(job, int(result.metadata["D"])), result, file)


def read_on_all_ranks(
    ranks: Ranks, directory: RunDirectory, files: Mapping[str, str], log: Callable[[str], None] = lambda line: None
) -> StoredRun:
    """Read a run on the root and broadcast it, see ``read_stored_run``. Collective."""
    on_root: StoredRun | None = None

    def find() -> tuple[Job, str, dict[str, tuple[int, ...]], dict[str, np.ndarray], dict[str, Any]]:
        nonlocal on_root
        on_root = read_stored_run(directory, files, log)
        shapes = {name: value.shape for name, value in on_root.params.items()}
        return on_root.job, on_root.file, shapes, on_root.result.data, on_root.metadata

    job, file, shapes, data, metadata = ranks.from_root(find)
    ranks.load_kernels()
    params = ranks.broadcast(
        {name: np.empty(shape) for name, shape in shapes.items()} if on_root is None else on_root.params
    )
    others = (
        ({}, {}, {}) if on_root is None else (on_root.result.history, on_root.result.snapshots, on_root.result.truth)
    )
    return StoredRun(job, *model_of(job, int(metadata["D"])), Result(params, *others, data, metadata), file)


def params_digest(params: Params) -> str:
    """Return a SHA-256 digest of the parameters."""
    return sha256(b"".join(np.asarray(value).tobytes() for value in params.values())).hexdigest()
