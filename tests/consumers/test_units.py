import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.units import (
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@given(st.floats(min_value=1e-6, max_value=1e12) | st.just(0.0) | st.integers(0, 10**9).map(float))
def test_every_duration_reads_back_to_the_same_seconds(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=2**63))
def test_every_size_reads_back_to_the_same_bytes(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("60s", 60.0), ("10m", 600.0), ("1h", 3600.0), ("7d", 604800.0), ("1.5h", 5400.0), (" 2 s ", 2.0)],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("256MiB", 268435456), ("1GB", 10**9), ("1kB", 1000), ("0.5KiB", 512), ("7B", 7)]
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_quantities_are_written_in_the_largest_unit_that_divides_them() -> None:
    assert [format_duration(s) for s in (0.0, 0.5, 25.0, 90.0, 3600.0, 172800.0)] == [
        "0s",
        "500ms",
        "25s",
        "90s",
        "1h",
        "2d",
    ]
    assert [format_size(s) for s in (0, 7, 1000, 262144, 10**9, 2**40)] == ["0B", "7B", "1kB", "256KiB", "1GB", "1TiB"]


@pytest.mark.parametrize("number", [500, "500", "500 ", 500.0])
def test_a_bare_number_is_refused_and_told_which_units_there_are(number: object) -> None:
    with pytest.raises(ValueError, match=r"500.* has no unit; write 500(\.0)?s, or another of ms, s, m, h, d"):
        parse_duration(number)


@pytest.mark.parametrize(
    "text", ["", "s", "-5s", "5x", "five s", "5 m s", "1e3s", "٣s", "9" * 30 + "s", True, None, [5]]
)
def test_what_is_no_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match=r"ms, s, m, h, d.*(60s|5s)"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2G", "2GiB"),
        ("2g", "2GiB"),
        ("1.5Gi", "1.5GiB"),
        ("2gb", "2GB"),
        ("2GIB", "2GiB"),
        ("512m", "512MiB"),
        ("64kb", "64kB"),
        ("1T", "1TiB"),
        ("9bytes", "9B"),
        ("2147483648", "2147483648B"),
    ],
)
def test_a_size_of_another_unit_is_answered_with_the_unit_that_is_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"; write (for instance )?{re.escape(meant)}(, or|$)"):
        parse_size(text)
    assert parse_size(meant) > 0


@pytest.mark.parametrize(
    ("text", "meant"),
    [("2min", "2m"), ("2M", "2m"), ("5 sec", "5s"), ("3hours", "3h"), ("1Day", "1d"), ("9msec", "9ms"), ("9MS", "9ms")],
)
def test_a_duration_of_another_unit_is_answered_with_the_unit_that_is_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"; write for instance {meant}$"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["2w", "2months", "2us"])
def test_what_no_unit_comes_near_is_answered_with_an_example_and_not_with_its_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"; write a number and one of them, as in 60s$"):
        parse_duration(text)


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'0\.3B' is not a whole number of bytes"):
        parse_size("0.3B")
