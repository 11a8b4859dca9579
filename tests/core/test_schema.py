import pytest

from parallel_et.control.process import format_bytes
from parallel_et.core.schema import in_bytes


@pytest.mark.parametrize(
    "size, found",
    [("8 GiB", 2**33), ("500 MB", 500_000_000), ("1.5 TiB", 3 * 2**39), ("2kB", 2000), ("7 B", 7), (1e6, 1_000_000)],
)
def test_sizes_are_read_in_powers_of_1000_and_1024(size, found):
    assert in_bytes(size) == found


@pytest.mark.parametrize("size", ["", "8", "GiB", "-1 MB", "8 gib", "1e3 MB", "8 iB", "8 GiB!", "1 000 MB"])
def test_other_texts_than_sizes_are_refused(size):
    with pytest.raises(ValueError, match="expected a size"):
        in_bytes(size)


@pytest.mark.parametrize("size, text", [(0, "0 B"), (700, "700 B"), (2048, "2.0 KiB"), (12.4 * 2**30, "12.4 GiB")])
def test_sizes_are_shown_in_few_digits(size, text):
    assert format_bytes(size) == text
