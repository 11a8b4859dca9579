"""The MPI library, or a short error message if none is installed."""

try:
    from mpi4py import MPI
except (ImportError, RuntimeError):
    raise ImportError(
        "parallel_et: expected an MPI library, found none; load the MPI module of your site, or pip install mpich"
    ) from None

__all__ = ["MPI"]
