"""Variables of MATLAB files."""

from typing import Any

import h5py
import numpy as np
from scipy.io import loadmat

from parallel_et.errors import UserError
from parallel_et.storage.error_translation import check_room
from parallel_et.storage.stored_rows import files_of


def read_variable(path: str, name: str) -> np.ndarray:
    """One variable of a MATLAB file, by name or the only one that could be an image."""
    if h5py.is_hdf5(path):  # as MATLAB's version 7.3 is, its axes in the other order
        with h5py.File(path, "r") as file:
            able = {key: item for key, item in file.items() if isinstance(item, h5py.Dataset) and _able(item)}
            chosen = _chosen(able, path, name)
            files_of(chosen)
            check_room(path, f"a variable {chosen.name}", 2 * chosen.nbytes)
            return chosen[()].T
    every = loadmat(path)
    able = {key: item for key, item in every.items() if isinstance(item, np.ndarray) and _able(item)}
    return _chosen(able, path, name)


def _able(item: Any) -> bool:
    """Whether a variable could be an image."""
    return item.dtype.kind in "fiub" and item.ndim > 1 and min(item.shape) > 1


def _chosen(able: dict[str, Any], path: str, name: str) -> Any:
    if name in able:
        return able[name]
    if not name and len(able) == 1:
        return next(iter(able.values()))
    raise UserError(
        f"{path}: expected {f'a variable {name}' if name else 'one variable, or file.mat:NAME'}, "
        f"found {', '.join(sorted(able)) or 'none'}"
    )
