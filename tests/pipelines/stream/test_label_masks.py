"""Labels that records lack: decoded in every format, with the rows that have them in a column beside."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import DType, Field, Schema
from millrace.pipelines.shaping.unlabelled import NAME, unlabelled
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.record_sample import from_document, sample_of, to_document
from tests.pipelines.stream.test_decode import chunk_of

SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32"),),
    labels=(
        Field(name="watched", source="seconds", dtype="float32", masked=True, min=1),
        Field(name="kind", source="kind", dtype="int32", masked=True, one_of=(0, 1), classes=("no", "yes")),
    ),
)
RECORDS: list[dict[str, Any]] = [
    {"x": 1.0, "seconds": 5.0, "kind": "yes"},
    {"x": 2.0, "seconds": 6.0, "kind": None},
    {"x": 3.0, "kind": "no"},
    {"x": 4.0},
]


def decoded_of(schema: Schema, records: Sequence[Mapping[str, Any]]) -> Decoded:
    return decode_chunk(chunk_of([json.dumps(one).encode() for one in records]), make_decoder("json", schema))


def as_json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode()


def csv(record: Mapping[str, Any]) -> bytes:
    return ",".join("" if record.get(name) is None else str(record[name]) for name in ("x", "seconds", "kind")).encode()


def example(record: Mapping[str, Any]) -> bytes:
    def feature(value: Any) -> Any:
        if isinstance(value, str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))

    held = {name: feature(value) for name, value in record.items() if value is not None}
    return tf.train.Example(features=tf.train.Features(feature=held)).SerializeToString()  # type: ignore[no-any-return]


WRITERS: Mapping[str, Callable[[Mapping[str, Any]], bytes]] = {"json": as_json, "csv": csv, "example": example}


@pytest.mark.parametrize("form", ["json", "csv", pytest.param("example", marks=pytest.mark.tensorflow)])
def test_a_record_that_lacks_labels_is_decoded_and_marked(form: str) -> None:
    write = WRITERS[form]
    decoded = decode_chunk(chunk_of([write(one) for one in RECORDS]), make_decoder(form, SCHEMA))
    assert not decoded.refused
    assert decoded.labels["watched.present"].tolist() == [True, True, False, False]
    assert decoded.labels["kind.present"].tolist() == [True, False, True, False]
    assert decoded.labels["watched"].tolist() == [5.0, 6.0, 1.0, 1.0]
    assert decoded.labels["kind"].tolist() == [1, 0, 0, 0]
    assert {name: column.dtype for name, column in decoded.labels.items()} == {
        one.name: one.numpy_dtype for one in SCHEMA.targets
    }


def test_a_record_that_holds_what_marks_a_missing_label_is_refused() -> None:
    marks: dict[DType, Any] = {"int8": -128, "int64": -(2**63), "uint8": 255}
    for dtype, mark in marks.items():
        label = Field(name="y", source="y", dtype=dtype, masked=True)
        decoded = decoded_of(replace(SCHEMA, labels=(label,)), [{"x": 1, "y": mark}, {"x": 1, "y": 1}, {"x": 1}])
        assert [one.reason for one in decoded.refused] == [Reason.OUT_OF_RANGE]
        assert decoded.labels["y.present"].tolist() == [True, False]
    decoded = decoded_of(SCHEMA, [{"x": 1, "kind": "\x00none"}, {"x": 1, "kind": "maybe"}, {"x": 1, "seconds": 0}])
    assert [one.reason for one in decoded.refused] == [Reason.NOT_ALLOWED, Reason.NOT_ALLOWED, Reason.OUT_OF_RANGE]


def test_a_label_of_several_numbers_is_missing_as_a_whole() -> None:
    label = Field(name="y", source="y", dtype="float32", shape=(2,), masked=True)
    decoded = decoded_of(replace(SCHEMA, labels=(label,)), [{"x": 1, "y": [1, 2]}, {"x": 1}, {"x": 1, "y": [1, None]}])
    assert decoded.labels["y.present"].tolist() == [True, False]
    assert decoded.labels["y"].tolist() == [[1, 2], [0, 0]]
    assert [one.reason for one in decoded.refused] == [Reason.MISSING]


def test_records_without_any_label_are_skipped_under_a_name_of_their_own() -> None:
    shaper = unlabelled(SCHEMA)
    assert shaper is not None
    decoded = decoded_of(SCHEMA, RECORDS)
    rows, skipped = shaper.open(5, {})(decoded)
    assert rows.offsets.tolist() == [0, 1, 2]
    assert skipped == [(3, NAME)]
    assert unlabelled(replace(SCHEMA, labels=(SCHEMA.labels[0], Field(name="z", source="z", dtype="bool")))) is None


def test_a_sample_keeps_which_rows_have_a_label() -> None:
    sample = sample_of([decoded_of(SCHEMA, RECORDS)], 10)
    assert sample is not None
    read = from_document(json.loads(json.dumps(to_document(sample))))
    assert read is not None
    assert read.fits(SCHEMA)
    np.testing.assert_array_equal(read.labels["kind.present"], [True, False, True, False])
