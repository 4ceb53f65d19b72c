"""Sizes, ages and values for people."""

import math

import pytest

from millrace.consumers.rounded import rounded_age, rounded_size, rounded_value


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.88349, "0.883"),
        (0.0004321, "0.000432"),
        (12.44, "12.4"),
        (999.4, "999"),
        (1123.9, "1,124"),
        (-484_354.2, "-484,354"),
        (3.1e9, "3.1e+09"),
        (0.0, "0"),
        (math.nan, "nan"),
    ],
)
def test_a_value_of_everyday_size_has_no_exponent(value: float, text: str) -> None:
    assert rounded_value(value) == text
