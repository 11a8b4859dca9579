"""Variables of MATLAB files."""

from typing import Any

import h5py
import numpy as np
from scipy.io import loadmat

from parallel_et.errors import UserError
from parallel_et.storage.error_translation import check_fits_memory
from parallel_et.storage.stored_rows import files_of


def read_variable(path: str, name: str) -> np.ndarray:
    """Return a variable of a MATLAB file: the named one, or the only one that could be an image."""
    if h5py.is_hdf5(path):  # MATLAB's version 7.3, with reversed axes
        with h5py.File(path, "r") as file:
            candidates = {
                key: item for key, item in file.items() if isinstance(item, h5py.Dataset) and _could_be_image(item)
            }
            chosen = _choose(candidates, path, name)
            files_of(chosen)
            check_fits_memory(path, f"a variable {chosen.name}", 2 * chosen.nbytes)
            return chosen[()].T
    every = loadmat(path)
    candidates = {key: item for key, item in every.items() if isinstance(item, np.ndarray) and _could_be_image(item)}
    return _choose(candidates, path, name)


def _could_be_image(item: Any) -> bool:
    """Return whether a variable could be an image."""
    return item.dtype.kind in "fiub" and item.ndim > 1 and min(item.shape) > 1


def _choose(candidates: dict[str, Any], path: str, name: str) -> Any:
    if name in candidates:
        return candidates[name]
    if not name and len(candidates) == 1:
        return next(iter(candidates.values()))
    raise UserError(
        f"{path}: expected {f'a variable {name}' if name else 'one variable, or file.mat:NAME'}, "
        f"found {', '.join(sorted(candidates)) or 'none'}"
    )
