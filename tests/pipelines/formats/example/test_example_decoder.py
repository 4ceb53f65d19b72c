"""Examples as columns, with the verdict that a live record would meet."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.example.decoder import (
    FLOATS,
    INTS,
    TEXTS,
    ExampleDecoder,
    JoinedExamples,
    Kinds,
    far_lists,
)
from millrace.pipelines.formats.shared.paths import parse
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.files.example_files import example
from tests.pipelines.formats.decoder_conformance import Outcome, outcomes, same
from tests.pipelines.formats.example.example_verdicts import SCHEMA as VERDICTS

pytestmark = pytest.mark.tensorflow
SCHEMA = Schema(
    features=(
        Field(name="x", source="x", dtype="float32", shape=(2,), max=50),
        Field(name="word", source="word", dtype="string", one_of=("a", "b")),
        Field(name="level", source="level", dtype="int8", missing=7),
        Field(name="tail", source="tail", dtype="int32", shape=(3,), pad=-1, length="tail_length"),
        Field(name="flag", source="flag", dtype="bool", missing=False),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
)
GOOD = {"x": [1.0, 2.0], "word": b"a", "level": 3, "tail": [1, 2, 3, 4], "flag": 1, "y": 1.0}
WITHOUT_X = {name: value for name, value in GOOD.items() if name != "x"}
BAD = {
    b"\xff\xff\xff": (Reason.MALFORMED, None),
    b"": (Reason.EMPTY, None),
    example(WITHOUT_X): (Reason.MISSING, "x"),
    example({**GOOD, "x": [1.0]}): (Reason.WRONG_SHAPE, "x"),
    example({**GOOD, "x": [b"1", b"2"]}): (Reason.WRONG_TYPE, "x"),
    example({**GOOD, "level": 1.5}): (Reason.WRONG_TYPE, "level"),
    example({**GOOD, "x": [float("nan"), 1.0]}): (Reason.NOT_FINITE, "x"),
    example({**GOOD, "x": [51.0, 1.0]}): (Reason.OUT_OF_RANGE, "x"),
    example({**GOOD, "level": 128}): (Reason.OUT_OF_RANGE, "level"),
    example({**GOOD, "flag": 2}): (Reason.OUT_OF_RANGE, "flag"),
    example({**GOOD, "word": b"c"}): (Reason.NOT_ALLOWED, "word"),
}


def test_columns_hold_what_the_examples_hold_padded_cut_and_filled_in() -> None:
    sparse = {"x": [3, 4], "word": b"b", "y": 0}
    found = ExampleDecoder(SCHEMA).decode([example(GOOD), example(sparse)])
    assert not found.refused
    assert found.columns["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found.columns["x"].dtype == np.float32
    assert found.columns["level"].tolist() == [3, 7]
    assert found.columns["tail"].tolist() == [[1, 2, 3], [-1, -1, -1]]
    assert found.lengths["tail"].tolist() == [4, 0]
    assert found.columns["flag"].tolist() == [True, False]
    assert found.columns["word"].tolist() == [b"a", b"b"]


@pytest.mark.parametrize("integers", [(), ("y", "x")])
def test_a_bad_example_is_refused_by_name_whatever_its_neighbours_are(integers: tuple[str, ...]) -> None:
    decoder = ExampleDecoder(SCHEMA, integers)
    texts: list[bytes | None] = [example(GOOD)]
    for bad in BAD:
        texts += [bad, example({**GOOD, "y": 0})]
    together = decoder.decode(texts)
    assert [(one.reason, one.field) for one in together.refused] == [*BAD.values()]
    assert together.kept.tolist() == list(range(0, len(texts), 2))
    assert together.columns["y"].tolist() == [1.0] + [0.0] * len(BAD)
    for bad, verdict in BAD.items():
        (alone,) = decoder.decode([bad]).refused
        assert (alone.reason, alone.field) == verdict


def number(value: int, width: int = 1) -> bytes:
    """Return a varint of at least so many bytes."""
    found = bytearray()
    while value > 0x7F or len(found) + 1 < width:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def inside(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + number(len(content)) + content


@pytest.mark.parametrize("size", [2**28, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("width", [1, 3, 10])
@pytest.mark.parametrize(("name", "tag"), [(b"x", 0x12), (b"word", 0x0A)])
def test_a_list_that_states_an_enormous_length_is_refused(name: bytes, tag: int, width: int, size: int) -> None:
    """TensorFlow reserves memory for all of it, and ends the process where the length is 2^31 or more."""
    good = example(GOOD)
    for more in (b"", b"a" * 4, bytes(range(128, 256))):
        stated = b"\n" + number(size, width) + more
        lists = number(len(stated), width) + stated
        entry = inside(0x0A, inside(0x0A, name) + inside(0x12, bytes([tag]) + lists))
        bad = inside(0x0A, entry + inside(0x0A, inside(0x0A, b"other") + inside(0x12, inside(0x1A, b"\n\x01\x01"))))
        assert far_lists(JoinedExamples.of([good, bad, good])).tolist() == [1]
        found = ExampleDecoder(SCHEMA).decode([good, bad, good])
        assert found.kept.tolist() == [0, 2]
        assert [(one.index, one.reason) for one in found.refused] == [(1, Reason.MALFORMED)]


def test_a_chance_likeness_of_a_long_list_keeps_no_example_from_being_learnt() -> None:
    word = b"\x12\x05\n" + bytes([0xFF] * 4) + b"\x0f"
    text = example({**GOOD, "other": word})
    assert far_lists(JoinedExamples.of([text])).tolist() == [0]
    assert ExampleDecoder(SCHEMA).decode([text]).kept.tolist() == [0]


def test_lists_of_another_kind_are_seen_before_tensorflow_refuses_the_chunk() -> None:
    kinds = Kinds({"x": FLOATS, "word": TEXTS, "a longer name": INTS})
    records: list[dict[str, object]] = [
        {**GOOD},
        {**GOOD, "x": 1},
        {**GOOD, "word": 1.0},
        {**GOOD, "a longer name": b"1"},
        {"x": [1.0] * 99},
    ]
    texts = [example(one) for one in records]
    assert kinds.unlike(JoinedExamples.of(texts)).tolist() == [1, 2, 3]
    cut = [text[:length] for text in texts for length in range(len(text))]
    assert kinds.unlike(JoinedExamples.of(cut)).tolist() == []
    lengths = [text[:2] + b"\xff" * 9 + text[3:] for text in texts]
    assert kinds.unlike(JoinedExamples.of(lengths)).tolist() == []


def plainly(record: bytes) -> Outcome:
    """Return what becomes of an Example, by protobuf's reading of it and one element at a time."""
    features = tf.train.Example.FromString(record).features.feature
    row: dict[str, object] = {}
    for field in VERDICTS.fields:
        feature = features[parse(field.source).text]
        kind = feature.WhichOneof("kind")
        wanted = "bytes_list" if field.dtype == "string" else "float_list" if "float" in field.dtype else "int64_list"
        if kind not in {None, wanted} and (kind, wanted) != ("int64_list", "float_list"):
            return Reason.WRONG_TYPE, field.source
    for field in VERDICTS.fields:
        feature = features[parse(field.source).text]
        kind = feature.WhichOneof("kind")
        values = [] if kind is None else list(getattr(feature, kind).value)
        inner = math.prod(field.shape[1:]) if field.pad is not None else math.prod(field.shape)
        if not values and field.pad is None:
            if field.missing is None:
                return Reason.MISSING, field.source
            row[field.source] = np.full(field.shape, filled(field.missing), field.numpy_dtype).tolist()
            continue
        if len(values) % inner if field.pad is not None else len(values) != inner:
            return Reason.WRONG_SHAPE, field.source
        reasons = [judged(value, field) for value in values]
        for reason in (Reason.NOT_FINITE, Reason.OUT_OF_RANGE, Reason.NOT_ALLOWED):
            if reason in reasons:
                return reason, field.source
        if field.pad is not None:
            values = (values + [filled(field.pad)] * math.prod(field.shape))[: math.prod(field.shape)]
        with np.errstate(over="ignore"):
            row[field.source] = np.array(values, field.numpy_dtype).reshape(field.shape).tolist()
    return row


def filled(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def judged(value: float | bytes, field: Field) -> Reason | None:
    if isinstance(value, bytes):
        return Reason.NOT_ALLOWED if field.one_of and value.decode("latin-1") not in field.one_of else None
    if not math.isfinite(value):
        return Reason.NOT_FINITE
    if field.dtype == "bool":
        return None if value in {0, 1} else Reason.OUT_OF_RANGE
    if "float" not in field.dtype and not np.iinfo(field.dtype).min <= value <= np.iinfo(field.dtype).max:
        return Reason.OUT_OF_RANGE
    with np.errstate(over="ignore"):
        rounded = np.array(value, field.numpy_dtype)
    if not np.isfinite(rounded) or (field.max is not None and rounded > field.max):
        return Reason.OUT_OF_RANGE
    return Reason.NOT_ALLOWED if field.one_of and rounded not in field.one_of else None


NUMBERS = st.sampled_from([0.0, -0.0, 1.5, 9.0, 60.0, 65520.0, 3e38, float("nan"), float("inf")])
INTEGERS = st.sampled_from([0, 1, 2, -1, 127, 128, 300, 2**15, 2**24 + 1, 2**53 + 1, -(2**63), 2**63 - 1])
WORDS = st.sampled_from([b"", b"DE", b"NO", b"no", b"\xff"])


@settings(max_examples=300)
@given(data=st.data())
def test_examples_of_any_features_are_decoded_as_element_by_element(data: st.DataObject) -> None:
    def usual(field: Field) -> st.SearchStrategy[list[Any]]:
        element: st.SearchStrategy[Any] = (
            WORDS if field.dtype == "string" else NUMBERS if "float" in field.dtype else INTEGERS
        )
        return st.lists(element, min_size=1, max_size=5)

    def one() -> bytes:
        drawn: dict[str, object] = {"y": [1.0]}
        for field in data.draw(st.lists(st.sampled_from(VERDICTS.fields), max_size=4)):
            element: st.SearchStrategy[Any] | None = data.draw(st.sampled_from([None, None, WORDS, NUMBERS, INTEGERS]))
            lists = usual(field) if element is None else st.lists(element, max_size=4)
            drawn[parse(field.source).text] = data.draw(lists)
        return example(drawn)

    records = [one() for _ in range(data.draw(st.integers(1, 6)))]
    found = outcomes(make_decoder("example", VERDICTS), records)
    for record, outcome in zip(records, found, strict=True):
        assert same(outcome, plainly(record)), tf.train.Example.FromString(record)
