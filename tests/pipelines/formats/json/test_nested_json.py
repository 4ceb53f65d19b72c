"""Nested JSON against a slow reference, record by record with the `json` module, and its way through a chunk."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.json.faults import JsonAsked, diagnose
from millrace.pipelines.schema import DType, Field, Schema
from tests.pipelines.formats.decoder_conformance import Outcome, assert_like_alone, outcomes, same

FIELDS = (
    Field(name="age", source="user.age", dtype="int64"),
    Field(name="lat", source="user.geo.lat", dtype="float64", missing=-1.0),
    Field(name="seen", source="user.seen", dtype="bool", missing=False),
    Field(name="price", source="items[].price", dtype="float64", shape=(2,), missing=0.0),
    Field(name="words", source="items[].words", dtype="string", shape=(3, 2), pad="", missing="?"),
    Field(name="grid", source="grid[][].x.y", dtype="int64", shape=(1, 2), missing=0),
    Field(name="name", source="name", dtype="string", missing="-"),
)
FIELD_ORDER = [field.source for field in FIELDS]
DECODER = make_decoder("json", Schema(features=FIELDS))
TOKENS = {
    "user.age": ["user", ".age"],
    "user.geo.lat": ["user", ".geo", ".lat"],
    "user.seen": ["user", ".seen"],
    "items[].price": ["items", "[]", ".price"],
    "items[].words": ["items", "[]", ".words", "[]"],
    "grid[][].x.y": ["grid", "[]", "[]", ".x", ".y"],
    "name": ["name"],
}
"""What lies on the way to each field, written out by hand."""


class Pairs(list[tuple[str, Any]]):
    """An object, which may have a name twice."""


class WrongError(Exception):
    """A record that is refused."""


def twice(value: Any, ways: dict[str, list[list[str]]]) -> str | None:
    """Return the first field of which the way leads over a name that is there twice."""
    seen = set[str]()
    for key, inside in value:
        on = {source: [way[1:] for way in left if way[0].lstrip(".") == key] for source, left in ways.items()}
        on = {source: left for source, left in on.items() if left}
        if not on:
            continue
        if key in seen:
            return next(source for source in FIELD_ORDER if source in on)
        seen.add(key)
        deeper = {
            source: [way for way in left if any(step.startswith(".") for step in way)] for source, left in on.items()
        }
        if (found := twice_inside(inside, {source: left for source, left in deeper.items() if left})) is not None:
            return found
    return None


def twice_inside(value: Any, ways: dict[str, list[list[str]]]) -> str | None:
    """Return the same for a value that may be an object, or lists of objects, as the ways have it."""
    if not ways:
        return None
    (first, *_), *_ = next(iter(ways.values()))
    if first == "[]":
        if type(value) is not list:
            return None
        on = {source: [way[1:] for way in left] for source, left in ways.items()}
        return next(filter(None, (twice_inside(element, on) for element in value)), None)
    return twice(value, ways) if isinstance(value, Pairs) else None


def reference(record: bytes) -> Outcome:
    """Return a record's values by source, or its verdict, by looking at each field by itself."""
    said = json.loads(record, object_pairs_hook=Pairs)
    if (repeated := twice(said, {source: [tokens] for source, tokens in TOKENS.items()})) is not None:
        return Reason.MALFORMED, repeated
    typed: dict[str, Any] = {}
    for field in FIELDS:
        try:
            typed[field.source] = walked(said, TOKENS[field.source], field.dtype)
        except WrongError as wrong:
            return wrong.args[0], field.source
    row: dict[str, object] = {}
    for field in FIELDS:
        try:
            row[field.source] = shaped(typed[field.source], field)
        except WrongError as wrong:
            return wrong.args[0], field.source
    return row


def walked(value: Any, tokens: Sequence[str], dtype: DType) -> Any:
    """Return what the tokens lead to, in lists, with None for what is not there."""
    if value is None:
        return None
    listed, record = type(value) is list, isinstance(value, Pairs)
    if not tokens:
        if listed:
            raise WrongError(Reason.WRONG_SHAPE)
        return scalar(value, dtype)
    if tokens[0] == "[]":
        if listed:
            return [walked(element, tokens[1:], dtype) for element in value]
        to_record = any(token.startswith(".") for token in tokens)
        if record or to_record:
            raise WrongError(Reason.WRONG_SHAPE if record and to_record else Reason.WRONG_TYPE)
        scalar(value, dtype)
        raise WrongError(Reason.WRONG_SHAPE)
    if listed:
        raise WrongError(Reason.WRONG_SHAPE)
    if not record:
        raise WrongError(Reason.WRONG_TYPE)
    return walked(dict(value).get(tokens[0].lstrip(".")), tokens[1:], dtype)


def scalar(value: Any, dtype: DType) -> Any:
    """Return a value of a dtype, or raise."""
    fits: dict[str, Callable[[], bool]] = {
        "int64": lambda: type(value) is int,
        "float64": lambda: type(value) in (int, float),
        "bool": lambda: type(value) is bool,
        "string": lambda: type(value) is str,
    }
    if not fits[dtype]():
        raise WrongError(Reason.WRONG_TYPE)
    if dtype == "int64" and not -(2**63) <= value < 2**63:
        raise WrongError(Reason.OUT_OF_RANGE)
    made: dict[str, Callable[[], Any]] = {"float64": lambda: float(value), "string": lambda: str(value).encode()}
    return made.get(dtype, lambda: value)()


def shaped(value: Any, field: Field) -> Any:
    """Return a value in the shape of a field, or raise."""
    missing = field.missing.encode() if isinstance(field.missing, str) else field.missing
    if value is None:
        if missing is None:
            raise WrongError(Reason.MISSING)
        if field.pad is None:
            return np.full(field.shape, missing).tolist() if field.shape else missing
        return [[missing] * field.shape[1], *[[b""] * field.shape[1]] * (field.shape[0] - 1)]
    if not field.shape:
        return value
    if field.pad is None and len(value) != field.shape[0]:
        raise WrongError(Reason.WRONG_SHAPE)
    inner = field.shape[1:]
    worst = [fault for element in value for fault in faults(element, inner)]
    if worst:
        raise WrongError(Reason.MISSING if Reason.MISSING in worst else worst[0])
    filling = [b""] * inner[0] if inner else None
    return value if field.pad is None else [*value, *[filling] * field.shape[0]][: field.shape[0]]


def faults(value: Any, shape: tuple[int, ...]) -> list[Reason]:
    """Return what is wrong with an element of a list."""
    if value is None:
        return [Reason.MISSING]
    if not shape:
        return []
    if len(value) != shape[0]:
        return [Reason.WRONG_SHAPE]
    return [fault for element in value for fault in faults(element, shape[1:])]


def written(value: Any) -> str:
    """Return the JSON of a value."""
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{written(inside)}" for key, inside in value) + "}"
    if type(value) is list:
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


NAMES = st.sampled_from(["user", "age", "geo", "lat", "seen", "items", "price", "words", "grid", "x", "y", "name", "o"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**63, -(2**63) - 1, 0, 1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3).filter(lambda text: text.isprintable()),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inside: st.lists(inside, max_size=3) | st.lists(st.tuples(NAMES, inside), max_size=3).map(Pairs),
    max_leaves=6,
)


def member(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Draw an object with one member, sometimes with something else in its place, or none."""
    good = values.map(lambda value: [(name, value)])
    other = ANYTHING.map(lambda value: [(name, value)])
    return st.one_of(good, good, good, other, st.just([]), st.tuples(NAMES, ANYTHING).map(lambda pair: [pair]))


def objects(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw an object with most of these members."""
    drawn = st.tuples(*(member(name, values) for name, values in members.items()))
    return drawn.map(lambda parts: Pairs(pair for part in parts for pair in part))


WORDS = st.lists(st.sampled_from(["a", "b", "é"]), min_size=2, max_size=2)
ITEM = objects(price=st.floats(-1, 1) | st.integers(0, 9), words=WORDS)
CELL = objects(x=objects(y=st.integers(0, 9)))
RECORD = objects(
    user=objects(age=st.integers(0, 99), geo=objects(lat=st.floats(-90, 90)), seen=st.booleans()),
    items=st.lists(ITEM | st.none(), min_size=2, max_size=2) | st.lists(ITEM, max_size=4),
    grid=st.lists(st.lists(CELL, min_size=2, max_size=2), min_size=1, max_size=1),
    name=st.text(max_size=3),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(RECORD)
@example(Pairs([("user", Pairs([("age", 1), ("age", 2)])), ("user", None)]))
@example(Pairs([("user", Pairs([("age", 1)])), ("items", [Pairs([("price", 1), ("words", None)]), None])]))
def test_a_nested_record_is_decoded_as_the_reference_decodes_it(record: Any) -> None:
    text = written(record).encode()
    (found,) = outcomes(DECODER, [text])
    assert same(found, reference(text)), found


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(RECORD, max_size=12))
def test_nested_records_are_decoded_among_others_as_alone(records: list[Any]) -> None:
    assert_like_alone(DECODER, [written(record).encode() for record in records])


@pytest.mark.slow
@settings(max_examples=200)
@given(RECORD)
def test_the_parser_confirms_every_diagnosis_of_a_nested_record_that_is_certain(record: Any) -> None:
    text = written(record).encode()
    fault = diagnose(text, JsonAsked(FIELDS))
    if fault.certain:
        assert outcomes(DECODER, [text]) == [(fault.reason, fault.field)]


def test_ragged_lists_of_records_tell_their_lengths() -> None:
    field = Field(name="price", source="items[].price", dtype="float32", shape=(3,), pad=0.0, ragged=True)
    records = [b'{"items":[{"price":%d}' % at + b',{"price":9}' * at + b"]}" for at in range(5)]
    decoded = make_decoder("json", Schema(features=(field,))).decode([*records, b'{"items":[]}', b'{"items":null}'])
    assert decoded.lengths["items[].price"].tolist() == [1, 2, 3, 4, 5, 0]
    assert decoded.columns["items[].price"][:3].tolist() == [[0, 0, 0], [1, 9, 0], [2, 9, 9]]
    assert [(refusal.index, refusal.reason) for refusal in decoded.refused] == [(6, Reason.MISSING)]


def test_good_nested_records_are_handed_on_without_a_copy() -> None:
    fields = (Field(name="age", source="user.age", dtype="int64"), Field(name="x", source="a.b.x", dtype="float32"))
    decoded = make_decoder("json", Schema(features=fields)).decode([b'{"user":{"age":1},"a":{"b":{"x":2}}}'] * 9)
    assert decoded.columns["user.age"].tolist() == [1] * 9
    assert not any(column.flags.owndata for column in decoded.columns.values())


def test_one_list_by_two_spellings_is_read_twice() -> None:
    fields = tuple(Field(name=source, source=source, dtype="int8", shape=(1,)) for source in ("tags", "tags[]"))
    decoded = make_decoder("json", Schema(features=fields)).decode([b'{"tags":[3]}', b'{"tags":["x"]}'])
    assert {source: column.tolist() for source, column in decoded.columns.items()} == {"tags": [[3]], "tags[]": [[3]]}
    assert [refusal.field for refusal in decoded.refused] == ["tags"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Field(name="a", source="user", dtype="string"), Field(name="b", source="user.age", dtype="int8")),
        (Field(name="a", source="user.age", dtype="int8"), Field(name="b", source="user", dtype="string")),
        (Field(name="a", source="x[].y", dtype="int8", shape=(2,)), Field(name="b", source="x.z", dtype="int8")),
        (
            Field(name="a", source="tags", dtype="int8", shape=(1,)),
            Field(name="b", source="tags[]", dtype="string", shape=(1,)),
        ),
    ],
)
def test_fields_that_cannot_both_be_read_are_a_setting_error(first: Field, second: Field) -> None:
    says = f"records: {first.source!r} and {second.source!r} do not agree"
    with pytest.raises(ConfigError) as refused:
        make_decoder("json", Schema(features=(first, second)))
    assert str(refused.value).startswith(says)
