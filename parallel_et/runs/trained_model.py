"""A trained model in a script: arrays of points in; posteriors, reconstructions and new points out."""

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
from parallel_et.data.model import DrawnFromModel
from parallel_et.errors import UserError
from parallel_et.inference.posterior import Inference
from parallel_et.job.job import Job, UntrustedError
from parallel_et.parallel.blas import one_blas_thread
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import Shard
from parallel_et.runs import result
from parallel_et.runs.directory import RunDirectory
from parallel_et.runs.result import Result, job_of
from parallel_et.runs.setup import largest_magnitudes, model_and_block_size, model_of


@dataclass(frozen=True, repr=False)
class Trained(Result):
    """The result of a run, with methods that apply the trained model to points.

    Points are (n, D) arrays. Axes after the first are flattened.
    With a communicator ``comm``, all its ranks call a method together with the same points. The ranks share the work,
    and every rank returns the whole result.

    Attributes
    ----------
    params, history, snapshots, truth, data, metadata, averages : see ``Result``
    files : section of the job -> file of a custom model or scheme that may be executed
    """

    files: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def job(self) -> Job:
        """The job of the run, with all default values."""
        return job_of(self.metadata, str(self.metadata.get("name", "result")), self.files)

    @cached_property
    def _model_and_scheme(self) -> tuple[Model, Scheme]:
        return model_of(self.job, int(self.metadata["D"]))

    @property
    def model(self) -> Model:
        """The model, without its parameters."""
        return self._model_and_scheme[0]

    def transform(self, Y: Any, comm: Any = None) -> np.ndarray:
        """Return the posterior means of the causes.

        Parameters
        ----------
        Y : (n, D) points
        comm : mpi4py communicator whose ranks share the work; default: this rank alone

        Returns
        -------
        array : (n, H) posterior mean of each cause of each point
        """
        return self._inferred(Y, "means", comm)

    def map_states(self, Y: Any, comm: Any = None) -> np.ndarray:
        """Return the most probable state of each point, among the states that the E-step considers.

        Parameters
        ----------
        Y : (n, D) points
        comm : mpi4py communicator whose ranks share the work; default: this rank alone

        Returns
        -------
        array : (n, H) 1 for an active cause, 0 otherwise
        """
        return self._inferred(Y, "map", comm)

    def reconstruct(self, Y: Any, comm: Any = None) -> np.ndarray:
        """Return the posterior means of the points without noise.

        Parameters
        ----------
        Y : (n, D) points
        comm : mpi4py communicator whose ranks share the work; default: this rank alone

        Returns
        -------
        array : (n, D) reconstructed points
        """
        return self._inferred(Y, "reconstruction", comm)

    def evidence(self, Y: Any, comm: Any = None) -> np.ndarray:
        """Return the log evidence of each point, log p(y), or a lower bound from the states that the E-step considers.

        Parameters
        ----------
        Y : (n, D) points
        comm : mpi4py communicator whose ranks share the work; default: this rank alone

        Returns
        -------
        array : (n,) log evidence in nats
        """
        return self._inferred(Y, "evidence", comm)

    def score(self, Y: Any, comm: Any = None) -> float:
        """Return the mean log evidence of the points Y (n, D), in nats per point."""
        return float(self.evidence(Y, comm).mean())

    def generate(self, points: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw points from the model.

        Parameters
        ----------
        points : number of points, n
        seed : seed of the random numbers

        Returns
        -------
        points : (n, D) drawn points
        states : (n, H) the state of each point
        """
        if points < 1:
            raise UserError(f"points: expected a positive number, found {points}")
        source = DrawnFromModel(self.model, self.params, points, seed, "generate", self.data.get("mean"))
        pieces = list(source.draw_groups(0, points))
        return np.concatenate([rows for _, rows, _ in pieces]), np.concatenate([states for *_, states in pieces])

    def _inferred(self, Y: Any, quantity: str, comm: Any) -> np.ndarray:
        """Return a quantity of ``Inference`` for all points; the values of a point depend on that point alone.

        If the scheme draws random numbers, each point is therefore inferred with the index 0.
        """
        ranks = Ranks.self_only() if comm is None else Ranks(comm)
        with ranks.synchronise_errors():
            source = self._source(Y)
        model, scheme, block = model_and_block_size(self.job, source)
        ranks.load_kernels()
        params = {name: np.array(value, order="F") for name, value in self.params.items()}  # the kernels require it
        inference = Inference(model, scheme, params, [quantity], self.data.get("mean"))
        shape, kind = inference.tables(source.points)[quantity]
        found, shard = np.empty(shape, kind), Shard.of(source.points, block, ranks.rank, ranks.size)
        with ranks.synchronise_errors(), one_blas_thread():
            for part in shard.blocks():
                first, last = shard.first + part.start, shard.first + part.stop
                rows = source.read(first, last)
                largest_magnitudes(rows[:, : source.dims], first, source.name)
                if scheme.draws:
                    found[first:last] = [inference.block(row[None])[quantity][0] for row in rows]
                else:
                    found[first:last] = inference.block(rows, first)[quantity]
        ranks.allgather_rows(found, shard.first, shard.last)
        return found

    def _source(self, Y: Any) -> Source:
        """Return points as a source, centred as the training data were."""
        source: Source = ArrayRows(Y)
        if source.dims != (dims := int(self.metadata["D"])):
            raise UserError(f"data: expected points of {dims} dimensions, found {source.dims}")
        return Centred(source, self.data["mean"]) if "mean" in self.data else source

    def __repr__(self) -> str:
        metadata = self.metadata
        numbers = [f"{name} {float(value):.4g}" for name, value in self.params.items() if value.ndim == 0]
        arrays = [f"{name} {value.shape}" for name, value in self.params.items() if value.ndim]
        energy = self.history.get("free_energy", np.empty(0))
        ended = f", free energy {energy[-1]:.6g} per point" if len(energy) else ""
        try:
            model, scheme = self._model_and_scheme
            title = f"{self.job.model.name}: {model.H} causes, {self.job.inference.scheme}: {scheme.description}"
        except UntrustedError:
            title = "a custom model or scheme, not loaded (trust=True loads it)"
        return "\n".join(
            (
                title,
                f"{metadata['N']} points of {metadata['D']} dimensions, {metadata['iteration']} iterations{ended}",
                ", ".join(numbers + arrays),
                "methods: transform, map_states, reconstruct, evidence, score, generate",
                "attributes: params, history, snapshots, truth, data, metadata",
            )
        )


def trained(found: Result, files: Mapping[str, str] | None = None) -> Trained:
    """Return a result with the methods of ``Trained``."""
    return Trained(**vars(found), files=files or {})


def load(path: str | os.PathLike[str], trust: bool = False) -> Trained:
    """Load the result of a finished run.

    Parameters
    ----------
    path : run directory, or its file ``result.h5``
    trust : execute the code of a custom model or scheme that is stored in the run directory

    Returns
    -------
    Trained : parameters, history and metadata of the run
    """
    place = Path(path)
    directory = RunDirectory(str(place if place.is_dir() else place.parent))
    found = directory.load_result() if place.is_dir() else result.load(place)
    return trained(found, directory.trusted_files(trust, None, None))
