"""Sizes and ages for people."""

import pytest

from consumers.rounded import rounded_age, rounded_size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_960, "1.0 MB"),
        (3_600_123, "3.6 MB"),
        (4.2e9, "4.2 GB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_a_size_has_one_decimal_and_the_largest_unit_that_fits(count: float, text: str) -> None:
    assert rounded_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (432_000, "5 days")],
)
def test_an_age_is_written_as_on_the_page(seconds: float, text: str) -> None:
    assert rounded_age(seconds) == text
