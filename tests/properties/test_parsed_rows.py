"""Rows of records that Python has parsed are those of the JSON decoder, bit for bit, or none are made."""

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.app.tools.serve.record_inputs import marked
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.json.parsed import FEW, ParsedRows
from millrace.pipelines.schema import Field, Schema
from tests.properties.effort import tried

SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32", min=-1000, max=1000.1),
        Field(name="exact", source="exact", dtype="float64", missing=0.5),
        Field(name="count", source="count", dtype="int64", missing=-1),
        Field(name="small", source="small", dtype="int8", missing=0, min=-100),
        Field(name="share", source="share", dtype="float32", missing=0.0, one_of=(0.0, 0.1, 1.0)),
        Field(name="on", source="on", dtype="bool", missing=False),
        Field(name="word", source="word", dtype="string", missing="none"),
        Field(name="kind", source="kind", dtype="int32", one_of=("shop", "wéb"), classes=("shop", "wéb")),
    ),
    event_time=Field(name="event_time", source="at", dtype="int64", missing=0),
)
DECODER, PARSED = make_decoder("json", SCHEMA), ParsedRows(SCHEMA)
MIDDLES = st.builds(
    lambda odd, power, more: format((2 * odd + 1) * 2.0**power, ".30f").rstrip("0") + more,
    st.integers(1, 2**24 - 1),
    st.integers(-20, 20),
    st.sampled_from(["", "0" * 9 + "1", "0" * 17 + "1"]),
)
"""Numbers in the middle between two float32, and next to it."""
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=True).map(json.dumps),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-0", "0", "-0.0", "-0e1", "0.1", "1E2", "1000.1", "1000.2", "1001", "-1001", "16777217"]),
    st.sampled_from(["1e400", "1e-46", "3.4028235677973366e38", "1e-400", "4.9e-324"]),
    MIDDLES,
)
OTHERS = st.one_of(
    st.sampled_from(["null", "true", "false", "[]", "[1]", "{}", '{"a":null}', '"\\ud800"', '"a\\u0000b"', '"}null"']),
    st.text(max_size=5).map(json.dumps),
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
)
NAMES = ["price", "exact", "count", "small", "share", "on", "word", "kind", "at", "unread"]
GOOD = {
    "price": st.floats(-1000, 1000, width=32).map(repr),
    "exact": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "count": st.integers(-(2**63), 2**63 - 1).map(str),
    "small": st.integers(-100, 127).map(str),
    "share": st.sampled_from(["0", "0.1", "1", "1.0"]),
    "on": st.sampled_from(["true", "false"]),
    "word": st.text(max_size=8).map(json.dumps),
    "kind": st.sampled_from(['"shop"', '"wéb"', '"w\\u00e9b"']),
    "at": st.integers(0, 10**13).map(str),
    "unread": st.one_of(NUMBERS, OTHERS),
}


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Return a record, of which few fields are odd; one may be there twice, or not at all."""
    pairs = []
    for name in NAMES:
        how = draw(st.integers(0, 40))
        if how == 0:
            pairs.append((name, draw(OTHERS)))
        elif how == 1 or (how < 12 and name in {"price", "exact"}):
            pairs.append((name, draw(NUMBERS)))
        elif how > 2 or name in {"price", "kind"}:
            pairs.append((name, draw(GOOD[name])))
        if how == 2:
            pairs.append((name, draw(GOOD[name])))
    space = draw(st.sampled_from(["", "", " ", "\n\t"]))
    return "{" + f"{space},{space}".join(f'"{name}"{space}:{space}{value}' for name, value in pairs) + "}"


@pytest.mark.row(47)
@tried(200)
@given(st.lists(texts(), min_size=1, max_size=3))
@example(['{"price":1.00000017881393432617187499999,"kind":"shop"}'])
@example(['{"price":-0,"kind":"shop"}'])
@example(['{"price":1,"price":2,"kind":"shop"}'])
def test_rows_of_parsed_records_are_those_of_the_decoder_to_the_bit(records: list[str]) -> None:
    values = [record.encode("utf-8", "surrogatepass") for record in records]
    body = b"[" + b",".join(values) + b"]"
    try:
        parsed = json.loads(body, object_pairs_hook=marked)
    except ValueError:
        return
    found = PARSED.decode(parsed, body)
    if found is None:
        return
    wanted = DECODER.decode(values)
    assert not wanted.refused
    assert found.kept.tolist() == wanted.kept.tolist()
    assert found.columns.keys() == wanted.columns.keys()
    for source, column in wanted.columns.items():
        ours = found.columns[source]
        assert (ours.dtype, ours.shape) == (column.dtype, column.shape), source
        assert (ours.tolist() if ours.dtype == object else ours.tobytes()) == (
            column.tolist() if column.dtype == object else column.tobytes()
        ), source


def test_plain_records_are_read_without_the_decoder() -> None:
    made = random.Random(1)

    def record() -> dict[str, Any]:
        return {"price": made.random(), "kind": "shop", "at": 5, "count": made.randrange(9), "more": "text", "share": 0}

    def read(records: list[Any]) -> bool:
        body = json.dumps(records).encode()
        return PARSED.decode(json.loads(body, object_pairs_hook=marked), body) is not None

    assert read([record() for _ in range(FEW)])
    assert not read([record() for _ in range(FEW + 1)])
    others = ({"kind": "boat"}, {"small": 200}, {"more": [1]}, {"on": 1})
    for odd in ({"price": 1001}, {"price": 1e39}, {"price": None}, *others):
        assert not read([{**record(), **odd}]), odd
    nested = Schema(features=(Field(name="age", source="user.age", dtype="int32"),))
    assert ParsedRows(nested).decode([{"user.age": 1}], b"") is None
