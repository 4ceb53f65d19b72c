"""The values of `start` and `until`: what they mean, and the error for a wrong one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import (
    Ago,
    At,
    Committed,
    Earliest,
    Latest,
    Now,
    Offsets,
    Start,
    Until,
    parse_start,
    parse_until,
)
from millrace.consumers.records import Partition

ZERO, ONE = Partition("clicks", 0), Partition("clicks", 1)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Earliest()),
        ("Latest", Latest()),
        (" committed ", Committed()),
        ("-7d", Ago(7 * 86400)),
        ("-1.5h", Ago(5400)),
        ("-500ms", Ago(0.5)),
        ("2026-11-21T03:00:00Z", At(1795230000000)),
        ("2026-11-21T04:00:00+01:00", At(1795230000000)),
        ("clicks:0=123", Offsets({ZERO: 123})),
    ],
)
def test_a_start_is_parsed(text: str, start: Start) -> None:
    assert parse_start(text) == start


def test_a_start_may_be_a_mapping_of_offsets() -> None:
    assert parse_start({"clicks:0": 123, "clicks:1": 0}) == Offsets({ZERO: 123, ONE: 0})


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("now", Now()),
        ("1970-01-01T00:00:01Z", At(1000)),
        ("clicks:0=123, clicks:1=77", Offsets({ZERO: 123, ONE: 77})),
    ],
)
def test_an_until_is_parsed(text: str, until: Until) -> None:
    assert parse_until(text) == until


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("7d", "start '7d' is not understood: write earliest"),
        ("yesterday", "start 'yesterday' is not understood"),
        ("2026-11-21", "names no zone"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ("clicks=5", "'clicks' is not a partition; write topic:number"),
        ("clicks:0=-5", "offset '-5' of clicks:0"),
        ("clicks:0=" + "7" * 5000, "is not a whole number"),
        ("clicks:" + "7" * 5000 + "=5", "is not a partition; write topic:number"),
        ("clicks:²=5", "is not a partition; write topic:number"),
        ("-" + "7" * 5000 + "d", "is not understood: write earliest"),
        ("clicks:0=5,clicks:0=6", "names clicks:0 twice"),
    ],
)
def test_a_wrong_start_is_refused_with_what_to_write(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_start(text)


def test_a_wrong_until_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match="until 'latest' is not understood: write now"):
        parse_until("latest")


def test_no_offsets_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="no offsets are given"):
        parse_start({})


_STARTS: st.SearchStrategy[Start] = st.one_of(
    st.sampled_from([Earliest(), Latest(), Committed()]),
    st.integers(0, 10**6).map(lambda tenths: Ago(tenths / 8)),
    st.integers(0, 4 * 10**12).map(At),
    st.dictionaries(
        st.builds(Partition, st.from_regex(r"[a-z._-]{1,9}", fullmatch=True), st.integers(0, 99)),
        st.integers(0, 2**62),
        min_size=1,
    ).map(Offsets),
)


@given(_STARTS)
def test_the_text_of_a_start_parses_to_the_same_start(start: Start) -> None:
    assert parse_start(str(start)) == start
