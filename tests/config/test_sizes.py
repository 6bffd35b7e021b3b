"""How much is meant by "4GB"."""

import pytest

from tyler.config.sizes import bytes_of


@pytest.mark.parametrize(
    "given, expected",
    [
        (4096, 4096),
        ("4096", 4096),
        ("4GB", 4 * 10**9),
        ("4 gb", 4 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("512MiB", 2**29),
        ("20kB", 20_000),
        ("1TB", 10**12),
        ("7B", 7),
    ],
)
def test_sizes_are_read_with_their_units(given: int | str, expected: int) -> None:
    assert bytes_of(given) == expected


@pytest.mark.parametrize(
    "given", ["", "GB", "4 bananas", "-4GB", "nanGB", "4GBs", "1e400GB", "0", "0.1B", 0, -5, True, 2.5]
)
def test_what_is_no_size_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"a number of bytes, such as 4GB or 512MiB"):
        bytes_of(given)
