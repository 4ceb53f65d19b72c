"""Fields beside the value: keys, headers and places of records, in every format and beside their values' verdicts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Headers, Partition
from millrace.pipelines.formats import Decoder, make_decoder
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import Decoded, decode_chunk

FORMATS_MD = Path(__file__).parents[4] / "docs" / "formats.md"
SCHEMA = Schema(
    features=(
        Field(name="who", source="$key", dtype="string"),
        Field(name="x", source="x", dtype="int8", min=0),
        Field(name="age", source="$header.age", dtype="uint8", missing=7, max=120),
        Field(name="share", source="$header.a.b", dtype="float32", missing=0.5),
        Field(name="land", source="$header.land", dtype="string", missing="?", one_of=("DE", "NO")),
    ),
    labels=(Field(name="spam", source="$header.spam", dtype="bool", missing=False),),
)
JSON = make_decoder("json", SCHEMA)
GOOD: dict[str, object] = {"who": b"k", "x": 1, "age": 7, "share": 0.5, "land": b"?", "spam": False}


@dataclass(frozen=True, slots=True)
class Case:
    """A record and what becomes of it."""

    what: str
    outcome: Any
    key: bytes | None = b"k"
    headers: Headers = ()
    value: bytes | None = b'{"x":1}'


CASES = (
    Case("a key, and no header with a `missing` value", GOOD),
    Case("a key that is no UTF-8", {**GOOD, "who": b"\xff\0"}, key=b"\xff\0"),
    Case("an empty key", {**GOOD, "who": b""}, key=b""),
    Case("a null key", (Reason.MISSING, "$key"), key=None),
    Case("a number in a header", {**GOOD, "age": 30, "share": 0.25}, headers=(("age", b"30"), ("a.b", b" 25e-2"))),
    Case("a header twice: the last", {**GOOD, "age": 31}, headers=(("age", b"x"), ("age", b"31"))),
    Case("other headers", GOOD, headers=(("Age", b"x"), ("", b""), ("key", b"x"))),
    Case("a null header", GOOD, headers=(("age", None),)),  # type: ignore[arg-type]  # Kafka has them
    Case("an empty header for a number", GOOD, headers=(("age", b""),)),
    Case("text for a number", (Reason.WRONG_TYPE, "$header.age"), headers=(("age", b"x"),)),
    Case("bytes that are not UTF-8 for a number", (Reason.WRONG_TYPE, "$header.age"), headers=(("age", b"\xff"),)),
    Case("a fraction for an integer", (Reason.WRONG_TYPE, "$header.age"), headers=(("age", b"1.0"),)),
    Case("an integer beyond its dtype", (Reason.OUT_OF_RANGE, "$header.age"), headers=(("age", b"256"),)),
    Case("a number above its `max`", (Reason.OUT_OF_RANGE, "$header.age"), headers=(("age", b"121"),)),
    Case("NaN", (Reason.NOT_FINITE, "$header.a.b"), headers=(("a.b", b"nan"),)),
    Case("an infinity", (Reason.NOT_FINITE, "$header.a.b"), headers=(("a.b", b"-Inf"),)),
    Case("a number beyond float32", (Reason.OUT_OF_RANGE, "$header.a.b"), headers=(("a.b", b"1e39"),)),
    Case("true", {**GOOD, "spam": True}, headers=(("spam", b"true"),)),
    Case("another word for a bool", (Reason.WRONG_TYPE, "$header.spam"), headers=(("spam", b"yes"),)),
    Case("text that `one_of` lists", {**GOOD, "land": b"NO"}, headers=(("land", b"NO"),)),
    Case("text that `one_of` does not list", (Reason.NOT_ALLOWED, "$header.land"), headers=(("land", b"no"),)),
    Case("two fields at fault: the schema's first", (Reason.MISSING, "$key"), key=None, value=b'{"x":"a"}'),
    Case(
        "a fault in the value before one in a header",
        (Reason.OUT_OF_RANGE, "x"),
        headers=(("age", b"x"),),
        value=b'{"x":-1}',
    ),
    Case("a null key, and a value that is no record", (Reason.MALFORMED, None), key=None, value=b"x"),
    Case("a key, and no value", (Reason.EMPTY, None), value=None),
)


def chunk_of(cases: Sequence[Case], start: int = 100) -> Chunk:
    """Return the records of these cases."""
    return Chunk(
        partition=Partition("clicks", 3),
        incarnation=1,
        start=start,
        end=start + len(cases),
        offsets=np.arange(start, start + len(cases)),
        timestamps=np.arange(len(cases)) + 1_800_000_000_000,
        keys=[case.key for case in cases],
        values=[case.value for case in cases],
        headers=[case.headers for case in cases],
        nbytes=0,
        fetched_at=0.0,
    )


def outcomes(decoder: Decoder, cases: Sequence[Case]) -> list[Any]:
    """Return what becomes of each record, after a check that each is named once and in order."""
    decoded = decode_chunk(chunk_of(cases), decoder)
    columns = {**decoded.features, **decoded.labels}
    rows = {
        offset: {
            name: column[row].item() if column.dtype != object else column[row] for name, column in columns.items()
        }
        for row, offset in enumerate(decoded.offsets.tolist())
    }
    refused = {one.offset: (one.reason, one.field) for one in decoded.refused}
    assert [*rows] == sorted(rows)
    assert [*refused] == sorted(refused)
    assert len(decoded.refused) == len(refused)
    found: dict[int, Any] = {**rows, **refused}
    assert len(rows) + len(refused) == len(cases)
    return [found[100 + at] for at in range(len(cases))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_record_alone_gets_the_verdict_of_the_table(case: Case) -> None:
    assert outcomes(JSON, [case]) == [case.outcome]


def test_the_docs_hold_every_verdict_and_no_other() -> None:
    section = FORMATS_MD.read_text(encoding="utf-8").partition("\n## Beside the value\n")[2].partition("\n## ")[0]
    _, _, table = section.partition("| a record with, or that is | verdict |\n|---|---|\n")
    assert table.strip().splitlines() == [line(case) for case in CASES]


def line(case: Case) -> str:
    """Return the line of a case in the table."""
    return f"| {case.what} | {'kept' if isinstance(case.outcome, dict) else f'`{case.outcome[0]}`'} |"


def test_no_order_and_no_neighbour_changes_a_record() -> None:
    for seed in range(20):
        cases = [*CASES, *CASES]
        random.Random(seed).shuffle(cases)
        size = 1 + seed * 3
        found = [outcome for at in range(0, len(cases), size) for outcome in outcomes(JSON, cases[at : at + size])]
        assert found == [case.outcome for case in cases]


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(st.binary(max_size=6) | st.sampled_from([b"1", b" 2", b"+3", b"0x1F", b"1e2", b"", b"\xff"]), max_size=8)
)
def test_a_header_is_read_as_a_column_of_csv_reads_the_same_text(texts: list[bytes]) -> None:
    field = Field(name="n", source="n", dtype="int16", missing=-1)
    csv = make_decoder("csv", Schema(features=(field,)), CsvSettings(quote=None))
    json = make_decoder(
        "json", Schema(features=(Field(name="x", source="x", dtype="int8"), replace(field, source="$key")))
    )
    for text, outcome in zip(texts, outcomes(json, [Case("", None, key=text) for text in texts]), strict=True):
        alone = csv.decode([text])
        if any(byte in text for byte in b",\r\n") or not text:
            continue
        if alone.refused:
            # What is no UTF-8 makes a whole row malformed, and a header of a wrong type.
            reason = {Reason.MALFORMED: Reason.WRONG_TYPE}.get(alone.refused[0].reason, alone.refused[0].reason)
            assert outcome == (reason, "$key")
        else:
            assert outcome == {"x": 1, "n": alone.columns["n"][0]}


def placed(form: str, value: bytes) -> Decoded:
    """Decode two records of a format, of which the second is refused."""
    features = (
        Field(name="offset", source="$offset", dtype="int64"),
        Field(name="x", source="x", dtype="int8"),
        Field(name="partition", source="$partition", dtype="float32"),
        Field(name="topic", source="$topic", dtype="string", one_of=("clicks",)),
        Field(name="who", source="$key", dtype="string"),
    )
    weight = Field(name="weight", source="$header.w", dtype="float32", missing=1.0)
    time = Field(name="event_time", source="$header.t", dtype="int64", missing=9)
    decoder = make_decoder(form, Schema(features=features, weight=weight, event_time=time))
    cases = [Case("", None, headers=(("w", b"2"), ("t", b"-5")), value=value), Case("", None, value=b",\n,")]
    return decode_chunk(chunk_of([cases[1], *cases]), decoder)


@pytest.mark.parametrize(("form", "value"), [("json", b'{"x":1}'), ("csv", b"1"), ("raw", b"\1")])
def test_every_format_has_what_is_beside_the_value(form: str, value: bytes) -> None:
    decoded = placed(form, value)
    assert {name: column.tolist() for name, column in decoded.features.items()} == {
        "offset": [101],
        "x": [1],
        "partition": [3.0],
        "topic": [b"clicks"],
        "who": [b"k"],
    }
    assert decoded.weights is not None
    assert (decoded.weights.tolist(), decoded.event_times.tolist(), decoded.offsets.tolist()) == ([2.0], [-5], [101])
    assert [(one.offset, one.reason) for one in decoded.refused] == [(100, Reason.MALFORMED), (102, Reason.MALFORMED)]


def test_a_weight_in_a_header_that_cannot_weigh_is_out_of_range() -> None:
    weight = Field(name="weight", source="$header.w", dtype="float32")
    schema = Schema(features=(Field(name="x", source="x", dtype="int8"),), weight=weight)
    cases = [Case("", None, headers=(("w", text),)) for text in (b"1", b"-1", b"0")]
    decoded = decode_chunk(chunk_of(cases), make_decoder("json", schema))
    assert [(one.offset, one.reason, one.field) for one in decoded.refused] == [(101, Reason.OUT_OF_RANGE, "$header.w")]
    assert decoded.features["x"].tolist() == [1, 1]


def test_an_offset_beyond_its_dtype_is_out_of_range() -> None:
    schema = Schema(
        features=(Field(name="x", source="x", dtype="int8"), Field(name="at", source="$offset", dtype="int8"))
    )
    decoded = decode_chunk(chunk_of([Case("", None)] * 40), make_decoder("json", schema))
    assert decoded.features["at"].tolist() == list(range(100, 128))
    assert {one.reason for one in decoded.refused} == {Reason.OUT_OF_RANGE}


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (Field(name="a", source="$offset", dtype="string"), "'$offset' is an integer; give it the dtype of a number"),
        (Field(name="a", source="$partition", dtype="bool"), "'$partition' is an integer"),
        (Field(name="a", source="$topic", dtype="int8"), "'$topic' is text; give it dtype: string"),
        (Field(name="a", source="$key", dtype="int8", shape=(2,)), "'$key' is one value; leave the shape out"),
    ],
)
def test_what_the_envelope_does_not_hold_is_a_setting_error(field: Field, says: str) -> None:
    x = Field(name="x", source="x", dtype="int8")
    with pytest.raises(ConfigError) as refused:
        make_decoder("json", Schema(features=(x, field)))
    assert f"field 'a': {says}" in str(refused.value)


@pytest.mark.parametrize("form", ["json", "csv", "raw"])
def test_a_schema_that_reads_nothing_of_the_value_is_a_setting_error(form: str) -> None:
    with pytest.raises(ConfigError, match="no field is read from the value of a record; name at least one"):
        make_decoder(form, Schema(features=(Field(name="a", source="$key", dtype="string"),)))
