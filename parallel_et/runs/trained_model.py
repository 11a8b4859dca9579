"""A trained model in a script: arrays of points in, posteriors, reconstructions and new points out."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parallel_et.core.model import Model
from parallel_et.core.scheme import Scheme
from parallel_et.data.base import ArrayRows, Centred, Source
from parallel_et.data.model import Drawn
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import Job, UntrustedError
from parallel_et.parallel.blas import one_blas_thread
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.runs import result
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.result import Result, job_of
from parallel_et.runs.setup import largest_of, model_of, size_up


@dataclass(frozen=True, repr=False)
class Trained(Result):
    """What a run has learned, and what can be made of it.

    Points are (n, D) arrays; axes after the first are flattened. With ``comm``, a communicator whose ranks all call
    the method with the same points, each does a part of them, and all have what it returns.

    Attributes
    ----------
    files : of its model and scheme those that may be executed, by section, where they are from files
    """

    files: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def job(self) -> Job:
        """The job that it was trained by."""
        return job_of(self.about, str(self.about.get("name", "result")), self.files)

    @cached_property
    def _parts(self) -> tuple[Model, Scheme]:
        return model_of(self.job, int(self.about["D"]))

    @property
    def model(self) -> Model:
        """The model, without its parameters."""
        return self._parts[0]

    def transform(self, Y: Any, comm: Any = None) -> np.ndarray:
        """Posterior means of the causes of each point, (n, H)."""
        return self._inferred(Y, "means", comm)

    def map_states(self, Y: Any, comm: Any = None) -> np.ndarray:
        """The most probable state of each point that is found, (n, H) of zeros and ones."""
        return self._inferred(Y, "map", comm)

    def reconstruct(self, Y: Any, comm: Any = None) -> np.ndarray:
        """Posterior means of the points without their noise, (n, D)."""
        return self._inferred(Y, "reconstruction", comm)

    def evidence(self, Y: Any, comm: Any = None) -> np.ndarray:
        """The logarithm of the probability density of each point, or its lower bound by the states considered, (n,)."""
        return self._inferred(Y, "evidence", comm)

    def score(self, Y: Any, comm: Any = None) -> float:
        """The mean evidence of the points."""
        return float(self.evidence(Y, comm).mean())

    def generate(self, points: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Points (n, D) drawn from the model, and the states (n, H) that they were drawn of."""
        if points < 1:
            raise UserError(f"points: expected a positive number, found {points}")
        source = Drawn(self.model, self.params, points, seed, "generate", self.data.get("mean"))
        pieces = list(source.drawn(0, points))
        return np.concatenate([rows for _, rows, _ in pieces]), np.concatenate([states for *_, states in pieces])

    def _inferred(self, Y: Any, what: str, comm: Any) -> np.ndarray:
        """One of the tables that the command infer makes of points; what it says of one depends on that point alone.

        So where posteriors are drawn, each point is the first.
        """
        ranks = Ranks.alone() if comm is None else Ranks(comm)
        with ranks.together():
            source = self._seen(Y)
        model, scheme, block = size_up(self.job, source)
        ranks.load_kernels()
        params = {name: np.array(value, order="F") for name, value in self.params.items()}  # kernels take no others
        inference = Inference(model, scheme, params, [what], self.data.get("mean"))
        shape, kind = inference.tables(source.points)[what]
        found, shard = np.empty(shape, kind), Shard.of(source.points, block, ranks.rank, ranks.size)
        with ranks.together(), one_blas_thread():
            for part in shard.blocks():
                first, last = shard.first + part.start, shard.first + part.stop
                rows = source.read(first, last)
                largest_of(rows[:, : source.dims], first, source.name)
                if scheme.draws:
                    found[first:last] = [inference.block(row[None])[what][0] for row in rows]
                else:
                    found[first:last] = inference.block(rows, first)[what]
        ranks.complete(found, shard.first, shard.last)
        return found

    def _seen(self, Y: Any) -> Source:
        """Points as the model sees them."""
        source: Source = ArrayRows(Y)
        if source.dims != (dims := int(self.about["D"])):
            raise UserError(f"data: expected points of {dims} dimensions, found {source.dims}")
        return Centred(source, self.data["mean"]) if "mean" in self.data else source

    def __repr__(self) -> str:
        about = self.about
        numbers = [f"{name} {float(value):.4g}" for name, value in self.params.items() if value.ndim == 0]
        arrays = [f"{name} {value.shape}" for name, value in self.params.items() if value.ndim]
        energy = self.history.get("free_energy", np.empty(0))
        ended = f", free energy {energy[-1]:.6g} a point" if len(energy) else ""
        try:
            model, scheme = self._parts
            what = f"{self.job.model.name}: {model.H} causes, {self.job.inference.scheme}: {scheme.words}"
        except UntrustedError:
            what = "a model or scheme of a file that is not trusted"
        return "\n".join(
            (
                what,
                f"{about['N']} points of {about['D']} dimensions, {about['iteration']} iterations{ended}",
                ", ".join(numbers + arrays),
                "transform, map_states, reconstruct, evidence and score of points; generate",
                "params, history, snapshots, truth and about",
            )
        )


def trained(found: Result, files: Mapping[str, str] | None = None) -> Trained:
    """A result that can be used."""
    return Trained(**vars(found), files=files or {})


def load(place: str | os.PathLike[str], trust: bool = False) -> Trained:
    """The result of a run, from its directory or its ``result.h5``.

    Parameters
    ----------
    trust : execute the files of its own model or scheme that lie in the run directory, if the job is of such
    """
    path = Path(place)
    directory = RunDirectory(str(path if path.is_dir() else path.parent))
    found = directory.load_result() if path.is_dir() else result.load(path)
    return trained(found, directory.trusted(trust, None, None))
