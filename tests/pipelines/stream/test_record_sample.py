"""A sample of real records: bounded, and the same after a way through JSON."""

import json
from typing import Any

import numpy as np
import pytest

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.record_sample import RecordSample, from_document, sample_of, to_document

SCHEMA = Schema(
    features=(
        Field(name="text", source="text", dtype="string"),
        Field(name="numbers", source="numbers", dtype="float32", shape=(3,), pad=0.0, length="count"),
        Field(name="words", source="words", dtype="string", shape=(2,)),
    ),
    labels=(Field(name="y", source="y", dtype="int64"),),
)


def decoded(number: int, count: int, text: str = "é") -> Decoded:
    rows: list[dict[str, Any]] = [
        {"text": text, "numbers": [at / 3] * (at % 4), "words": ["a", ""], "y": at + number * 100}
        for at in range(count)
    ]
    values = [b"{", *(json.dumps(row).encode() for row in rows)]
    offsets = np.arange(len(values))
    chunk = Chunk(
        partition=Partition("clicks", number),
        incarnation=0,
        start=0,
        end=len(values),
        offsets=offsets,
        timestamps=offsets,
        keys=[None] * len(values),
        values=values,
        headers=[()] * len(values),
        nbytes=1,
        fetched_at=0.0,
    )
    return decode_chunk(chunk, make_decoder("json", SCHEMA))


def whole(sample: RecordSample | None) -> RecordSample:
    assert sample is not None
    return sample


def test_a_sample_keeps_every_bit_on_its_way_through_json() -> None:
    sample = whole(sample_of([decoded(0, 5)], 100))
    again = whole(from_document(json.loads(json.dumps(to_document(sample)))))
    assert again.fits(SCHEMA)
    for one, other in ((sample.features, again.features), (sample.labels, again.labels)):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def test_the_order_in_which_chunks_came_does_not_matter() -> None:
    one = whole(sample_of([decoded(1, 3), decoded(0, 3)], 4))
    assert one.labels["y"].tolist() == [0, 1, 2, 100]


def test_a_sample_is_bounded_in_bytes_and_holds_at_least_one_record() -> None:
    assert len(whole(sample_of([decoded(0, 50, "x" * 1000)], 100, most_bytes=10_000))) == 9
    assert len(whole(sample_of([decoded(0, 5, "x" * 1000)], 100, most_bytes=10))) == 1


@pytest.mark.parametrize("rows", [0, 5])
def test_no_record_that_decodes_is_no_sample(rows: int) -> None:
    assert sample_of([decoded(0, 0)], rows) is None
    assert sample_of([], 5) is None


def test_a_sample_of_another_schema_does_not_fit() -> None:
    sample = whole(sample_of([decoded(0, 5)], 100))
    assert not sample.fits(Schema(features=SCHEMA.features[:2], labels=SCHEMA.labels))
    wider = Field(name="y", source="y", dtype="int64", shape=(2,))
    assert not sample.fits(Schema(features=SCHEMA.features, labels=(wider,)))
    other = Field(name="y", source="y", dtype="float32")
    assert not sample.fits(Schema(features=SCHEMA.features, labels=(other,)))


def test_a_document_of_a_later_version_is_left_alone() -> None:
    assert from_document({"format": 2}) is None
