"""Topics whose records are written otherwise than the others' and hold the same for the model."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from millrace.app.settings import records_of, to_decoder, to_schema
from millrace.app.settings.sections.records import RecordsSettings
from millrace.consumers.records import Partition
from millrace.pipelines.stream.decode import decode_chunk
from tests.pipelines.stream.test_decode import chunk_of

BASE: dict[str, Any] = {
    "features": {"price": "float32", "hour": "int32"},
    "label": {"clicked": {"dtype": "float32", "field": "was_clicked"}},
    "event_time": {"field": "at"},
    "where": {"kind": "view"},
}
OTHER = {"format": "csv", "csv": {"columns": ["amount", "hour", "clicked", "when"]}}


def records(**by_topic: Any) -> RecordsSettings:
    return RecordsSettings.model_validate({**BASE, "by_topic": by_topic})


def test_each_topic_is_read_by_its_own_format_and_places_into_the_same_columns() -> None:
    places = {"price": "amount", "clicked": "clicked", "event_time": "when"}
    found = records(purchases={**OTHER, "fields": places, "where": {}})
    decoder = to_decoder(found)
    view = json.dumps({"price": 1.5, "hour": 3, "was_clicked": 1, "at": 1000, "kind": "view"}).encode()
    other = json.dumps({"kind": "other"}).encode()
    first = decode_chunk(chunk_of([view, other]), decoder)
    assert first.filtered.tolist() == [1]
    second = decode_chunk(replace(chunk_of([b"2.5,4,0,2000"]), partition=Partition("purchases", 0)), decoder)
    assert second.filtered.tolist() == []
    for one, price, clicked, at in ((first, 1.5, 1.0, 1000), (second, 2.5, 0.0, 2000)):
        assert one.refused == ()
        assert one.features["price"].tolist() == [price]
        assert one.labels["clicked"].tolist() == [clicked]
        assert one.event_times.tolist() == [at]
    assert {name: column.dtype for name, column in first.features.items()} == {
        name: column.dtype for name, column in second.features.items()
    }
    assert [field.name for field in to_schema(records_of(found, "purchases")).fields] == [
        field.name for field in to_schema(found).fields
    ]


def test_a_verdict_names_the_field_of_the_topics_own_record() -> None:
    found = to_decoder(records(purchases={"fields": {"price": "amount.value"}, "where": {}}))
    chunk = replace(chunk_of([b'{"hour": 1, "was_clicked": 0, "at": 5}']), partition=Partition("purchases", 2))
    [refused] = decode_chunk(chunk, found).refused
    assert refused.field == "amount.value"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"fields": {"prise": "amount"}}, "purchases: fields: nothing of the model is called 'prise'"),
        ({"format": "csv", "avro": {"schema_file": "/a.avsc"}}, "this is about format: avro, and the format is csv"),
        ({"fields": {"hour": "price"}}, "read the record's field 'price' differently"),
        ({"where": {"kind": {"min": "a"}}}, "purchases"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_the_topic(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError) as told:
        records(purchases=given)
    assert complaint in str(told.value)


def test_a_topic_that_is_not_named_is_read_as_the_others() -> None:
    plain = RecordsSettings.model_validate(BASE)
    assert records_of(plain, "clicks") is plain
    assert records_of(records(purchases={"where": {}}), "clicks") == plain
