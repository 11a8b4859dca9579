"""A run read back: its job, model and scheme, and what it has learned so far."""

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
    """A run as far as it has come.

    Attributes
    ----------
    result : all of it where it was read; on other ranks the parameters, attributes and what was done to the data
    file : the name of that which holds it
    """

    job: Job
    model: Model
    scheme: Scheme
    result: Result
    file: str

    @property
    def params(self) -> Params:
        """What was learned."""
        return self.result.params

    @property
    def mean(self) -> np.ndarray | None:
        """What was subtracted from all points of the run, (D,), if anything was."""
        return self.result.data.get("mean")

    def seen(self, source: Source) -> Source:
        """Points as the model sees them: less what was subtracted from those that it was trained on."""
        return source if self.mean is None else Centred(source, self.mean)

    @property
    def about(self) -> dict[str, Any]:
        """The attributes of the result."""
        return self.result.about


def read_run(
    directory: RunDirectory, files: Mapping[str, str], say: Callable[[str], None] = lambda line: None
) -> StoredRun:
    """The result of a run, or else what its newest sound checkpoint has.

    Of models and schemes of files only those are executed that are among ``files``, by section.
    """
    result, file = directory.latest()
    say(f"{directory.path}: the parameters of {file}, after {result.about['iteration']} iterations")
    job = job_of(result.about, file, files)
    return StoredRun(job, *model_of(job, int(result.about["D"])), result, file)


def read_together(
    ranks: Ranks, directory: RunDirectory, files: Mapping[str, str], say: Callable[[str], None] = lambda line: None
) -> StoredRun:
    """The same on all ranks, read by the root, and ready to infer; all ranks call this together."""
    read: StoredRun | None = None

    def find() -> tuple[Job, str, dict[str, tuple[int, ...]], dict[str, np.ndarray], dict[str, Any]]:
        nonlocal read
        read = read_run(directory, files, say)
        shapes = {name: value.shape for name, value in read.params.items()}
        return read.job, read.file, shapes, read.result.data, read.about

    job, file, shapes, data, about = ranks.from_root(find)
    ranks.load_kernels()
    params = ranks.share({name: np.empty(shape) for name, shape in shapes.items()} if read is None else read.params)
    others = ({}, {}, {}) if read is None else (read.result.history, read.result.snapshots, read.result.truth)
    return StoredRun(job, *model_of(job, int(about["D"])), Result(params, *others, data, about), file)


def digest_of(params: Params) -> str:
    """What tells these parameters from others."""
    return sha256(b"".join(np.asarray(value).tobytes() for value in params.values())).hexdigest()
