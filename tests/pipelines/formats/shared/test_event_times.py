"""Event times in every form, against `datetime` and `zoneinfo`, one by one and among others."""
# ruff: noqa: DTZ001 - what a wall clock shows has no zone

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.shared.event_times import milliseconds
from millrace.pipelines.schema import Field, Schema, TimeFormat
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from tests.pipelines.formats.shared.test_record_envelope import Case, chunk_of

FORMATS_MD = Path(__file__).parents[4] / "docs" / "formats.md"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Monrovia", "UTC"]
BERLIN = TimeFormat(unit="iso8601", zone="Europe/Berlin")
ZONED = TimeFormat(unit="iso8601")

TEXTS: tuple[tuple[str, int | None], ...] = (
    ("2026-11-22T10:00:00Z", 1795341600000),
    ("2026-11-22T10:00:00.25+01:00", 1795338000250),
    ("2026-11-22 10:00:00-0330", 1795354200000),
    ("2026-11-22T10:00+01", 1795338000000),
    ("2026-11-22T10:00:00.123456789Z", 1795341600123),
    ("2026-11-22T10:00:00,5Z", 1795341600500),
    ("2026-11-22t10:00:00z", 1795341600000),
    ("1969-12-31T23:59:59.9999Z", -1),
    ("2026-02-30T00:00:00Z", None),
    ("2026-11-22T24:00:00Z", None),
    ("2026-11-22T10:00:00.1234567890Z", None),
    ("20261122T100000Z", None),
    ("22.11.2026 10:00", None),
    ("2026-11-22T10:00:00", None),
    ("2026-11-22", None),
    ("", None),
)


def read(texts: list[str], form: TimeFormat) -> list[int | None]:
    """Return the milliseconds of each text, None for one that is no time."""
    column = np.array([text.encode("utf-8", "surrogateescape") for text in texts], object)
    times, verdicts = milliseconds(column, form)
    bad = {index for _, mask in verdicts for index in np.flatnonzero(mask).tolist()}
    return [None if index in bad else time for index, time in enumerate(times.tolist())]


def floored(at: datetime) -> int:
    """Return the milliseconds since 1970 up to a time."""
    return (at - EPOCH) // timedelta(milliseconds=1)


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_a_text_has_its_time(text: str, expected: int | None) -> None:
    assert read([text], ZONED) == [expected]


def test_texts_among_others_have_the_times_that_they_have_alone() -> None:
    assert read([text for text, _ in TEXTS], ZONED) == [expected for _, expected in TEXTS]


def test_the_docs_hold_every_text() -> None:
    section = FORMATS_MD.read_text(encoding="utf-8").partition("\n## Event times\n")[2].partition("\n## ")[0]
    table = section.partition("| text | verdict |\n|---|---|\n")[2]
    assert table.strip().splitlines() == [line(text, at) for text, at in TEXTS]


def line(text: str, at: int | None) -> str:
    """Return the line of a text in the table."""
    return f"| {f'`{text}`' if text else 'an empty text'} | {'`wrong_type`' if at is None else 'kept'} |"


STAMPS = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))
OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def test_a_year_that_datetime_has_not_is_one_all_the_same() -> None:
    before_utc = timedelta(days=366, minutes=53, seconds=28) // timedelta(milliseconds=1)
    expected = floored(datetime(1, 1, 1, tzinfo=UTC)) - before_utc
    for text in ("0000-01-01T00:00:00", "0000-01-01T00:00:00.0000000"):
        assert read([text, "2026-11-22T11:00:00"], BERLIN) == [expected, 1795341600000]


@settings(max_examples=150)
@given(
    STAMPS,
    OFFSETS,
    st.sampled_from(["auto", "minutes", "seconds", "milliseconds", "microseconds"]),
    st.sampled_from("T "),
)
def test_a_text_with_a_zone_is_read_as_datetime_reads_it(at: datetime, zone: timezone, spec: str, between: str) -> None:
    text = at.replace(tzinfo=zone).isoformat(between, spec)
    expected = floored(datetime.fromisoformat(text))
    assert read([text], ZONED) == [expected]
    assert read([text, "", text], BERLIN) == [expected, None, expected]


@settings(max_examples=150)
@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)) | st.datetimes(datetime(1960, 1, 1), datetime(2040, 1, 1)),
    st.sampled_from(ZONES),
)
@example(datetime(2026, 10, 25, 2, 30), "Europe/Berlin")  # twice
@example(datetime(2026, 10, 25, 2, 30, fold=1), "Europe/Berlin")
@example(datetime(2026, 3, 29, 2, 30), "Europe/Berlin")  # never
@example(datetime(2026, 4, 5, 1, 45), "Australia/Lord_Howe")  # half an hour
@example(datetime(1972, 1, 7, 0, 20, 11), "Africa/Monrovia")  # 44 minutes and 30 seconds
@example(datetime(1960, 1, 1, 0, 0, 1), "Africa/Monrovia")
def test_a_text_without_a_zone_is_read_as_zoneinfo_reads_it(at: datetime, zone: str) -> None:
    expected = floored(at.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC))  # a text does not say the second
    form = TimeFormat(unit="iso8601", zone=zone)
    assert read([at.isoformat()], form) == [expected]
    assert read([at.isoformat(), "x", "2026-11-22T10:00:00Z"], form) == [expected, None, 1795341600000]


PARTS = st.sampled_from(["2026", "-", "11", "22", "T", ":", "10", ".", "5", ",", "Z", "+", "01", " ", "31", "02", "é"])
NEAR = st.one_of(
    st.sampled_from([text for text, _ in TEXTS]),
    st.lists(PARTS, max_size=12).map("".join),
    st.tuples(st.sampled_from([text for text, _ in TEXTS if text]), st.integers(0, 30), PARTS).map(
        lambda drawn: drawn[0][: drawn[1]] + drawn[2] + drawn[0][drawn[1] + 1 :]
    ),
    st.just("\udcff"),
)


@settings(max_examples=150)
@given(st.lists(NEAR, max_size=8), st.sampled_from([BERLIN, ZONED]))
def test_no_neighbour_changes_a_time(texts: list[str], form: TimeFormat) -> None:
    assert read(texts, form) == [read([text], form)[0] for text in texts]


@settings(max_examples=150)
@given(st.lists(NEAR, max_size=4))
def test_what_is_read_is_what_datetime_reads_if_it_reads_it(texts: list[str]) -> None:
    for text, found in zip(texts, read(texts, ZONED), strict=True):
        try:
            said = datetime.fromisoformat(text)
        except ValueError:
            continue
        if found is not None:
            assert said.tzinfo is not None
            assert found == floored(said)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_finer_units_are_rounded_down(times: list[int]) -> None:
    column = np.array(times, np.int64)
    for unit, size in (("us", 1000), ("ns", 1_000_000)):
        found, verdicts = milliseconds(column, TimeFormat(unit=unit))  # type: ignore[arg-type]
        assert found.tolist() == [time // size for time in times]
        assert not any(bad.any() for _, bad in verdicts)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_seconds_are_rounded_to_milliseconds_as_far_as_they_go(seconds: list[float]) -> None:
    times, verdicts = milliseconds(np.array(seconds, np.float64), TimeFormat(unit="s"))
    beyond = dict(verdicts)[Reason.OUT_OF_RANGE]
    for second, time, bad in zip(seconds, times.tolist(), beyond.tolist(), strict=True):
        assert bad == (abs(second) > 9.2233720368e15) or 9.22e15 < abs(second) < 9.23e15
        assert bad or time == round(second * 1000)


def decoded_with(form: TimeFormat, source: str, *cases: Case) -> Decoded:
    """Decode records with an event time of this form, and with a weight."""
    time = Field(name="event_time", source=source, dtype="int64", time=form)
    weight = Field(name="weight", source="w", dtype="float32", missing=1.0)
    x = Field(name="x", source="x", dtype="int8")
    return decode_chunk(chunk_of(cases), make_decoder("json", Schema(features=(x,), weight=weight, event_time=time)))


def test_a_record_without_a_time_is_set_aside_under_its_field() -> None:
    texts = [
        "2026-11-22T10:00:00Z",
        "soon",
        5,
        None,
        "2026-11-22T10:00:00",
        "1999-01-01T00:00:00Z",
        "2026-11-22T10:00:01Z",
    ]
    form = TimeFormat(unit="iso8601", min=10**12)
    values = [json.dumps({"x": at, "meta": {"at": text}}).encode() for at, text in enumerate(texts)]
    values.append(b'{"x":9,"w":-1,"meta":{"at":"soon"}}')
    decoded = decoded_with(form, "meta.at", *(Case("", None, value=value) for value in values))
    assert decoded.features["x"].tolist() == [0, 6]
    assert decoded.event_times.tolist() == [1795341600000, 1795341601000]
    assert decoded.weights is not None
    assert decoded.weights.tolist() == [1.0, 1.0]
    assert [(one.offset - 100, one.reason, one.field) for one in decoded.refused] == [
        (1, Reason.WRONG_TYPE, "meta.at"),
        (2, Reason.WRONG_TYPE, "meta.at"),
        (3, Reason.MISSING, "meta.at"),
        (4, Reason.WRONG_TYPE, "meta.at"),
        (5, Reason.OUT_OF_RANGE, "meta.at"),
        (7, Reason.OUT_OF_RANGE, "w"),
    ]


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("s", "1795341600.25", 1795341600250),
        ("s", "12", 12000),
        ("us", "-1", -1),
        ("ns", "1795341600123456789", 1795341600123),
    ],
)
def test_each_unit_is_read_from_a_record_and_from_a_header(unit: str, text: str, expected: int) -> None:
    form = TimeFormat(unit=unit)  # type: ignore[arg-type]
    in_value = decoded_with(form, "t", Case("", None, value=b'{"x":1,"t":' + text.encode() + b"}"))
    in_header = decoded_with(form, "$header.t", Case("", None, headers=(("t", text.encode()),)))
    assert in_value.event_times.tolist() == in_header.event_times.tolist() == [expected]


def test_a_text_of_a_time_can_be_a_feature_too() -> None:
    time = Field(name="event_time", source="t", dtype="int64", time=ZONED)
    schema = Schema(features=(Field(name="said", source="t", dtype="string"),), event_time=time)
    decoded = decode_chunk(
        chunk_of([Case("", None, value=b'{"t":"2026-11-22T10:00:00Z"}')]), make_decoder("json", schema)
    )
    assert decoded.features["said"].tolist() == [b"2026-11-22T10:00:00Z"]
    assert decoded.event_times.tolist() == [1795341600000]
    with pytest.raises(ConfigError, match="'t' is read both as int64 and as string"):
        make_decoder("json", Schema(features=(Field(name="n", source="t", dtype="int64"),), event_time=time))
