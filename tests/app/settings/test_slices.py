"""`records.slices`: fields by whose values the live score is shown; they decide nothing of a record."""

import json
from typing import Any

import numpy as np
import pytest

from millrace.app.settings.sections.records import RecordsSettings, slice_fields, to_decoder, to_schema
from millrace.app.settings.yaml_file import SettingsError
from millrace.app.tools.validate.record_check import unheld_slices
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.stream.decode import NO_VALUE, Decoded, decode_chunk

PARTITION = Partition("clicks", 0)
SECTION = {"features": {"price": "float32", "country": "string"}, "label": {"y": "float32"}}


def records_of(slices: Any, **more: Any) -> RecordsSettings:
    return RecordsSettings.model_validate({**SECTION, "slices": slices, **more})


def decoded_of(records: RecordsSettings, values: list[bytes], topic: str = "clicks") -> Decoded:
    size = len(values)
    chunk = Chunk(
        partition=Partition(topic, 0),
        incarnation=1,
        start=0,
        end=size,
        offsets=np.arange(size),
        timestamps=np.zeros(size, np.int64),
        keys=[b"k"] * size,
        values=values,
        headers=[()] * size,
        nbytes=sum(map(len, values)),
        fetched_at=0.0,
    )
    return decode_chunk(chunk, to_decoder(records))


def value(**more: Any) -> bytes:
    return json.dumps({"price": 1.5, "country": "DE", "y": 1, **more}).encode()


def shown(decoded: Decoded, name: str) -> list[str]:
    found = decoded.slices[name]
    return [found.values[code] for code in found.codes]


def test_a_list_is_of_features_and_of_texts_that_the_model_does_not_see() -> None:
    records = records_of(["country", "device"])
    country, device = slice_fields(records)
    assert (country.source, country.missing, device.dtype, device.missing) == ("country", None, "string", "")
    assert to_schema(records).slices == (), "no model, export or server is told of them"
    decoded = decoded_of(records, [value(device="tv"), value(country="FR"), value(device=None)])
    assert shown(decoded, "country") == ["DE", "FR", "DE"]
    assert shown(decoded, "device") == ["tv", NO_VALUE, NO_VALUE]
    assert decoded.features.keys() == {"price", "country"}


def test_names_may_have_a_place_and_a_type() -> None:
    records = records_of(
        {"app": {"field": "client.app"}, "paid": "bool", "age": {"dtype": "int64"}, "key": {"field": "$key"}}
    )
    decoded = decoded_of(records, [value(client={"app": "5.2"}, paid=True, age=41), value()])
    assert [shown(decoded, name) for name in ("app", "paid", "age", "key")] == [
        ["5.2", NO_VALUE],
        ["true", "false"],
        ["41", NO_VALUE],
        ["k", "k"],
    ]


def test_a_record_that_holds_something_else_there_is_learnt_all_the_same() -> None:
    values = [value(device="tv"), value(device=7), value(device=["tv"], price="dear"), value(device={"a": 1}), b"{"]
    sliced, plain = decoded_of(records_of(["device"]), values), decoded_of(records_of([]), values)
    assert [(one.offset, one.reason, one.field) for one in sliced.refused] == [
        (2, Reason.WRONG_TYPE, "price"),
        (4, Reason.MALFORMED, None),
    ]
    assert sliced.refused == plain.refused
    assert sliced.offsets.tolist() == plain.offsets.tolist() == [0, 1, 3]
    for name, column in plain.features.items():
        np.testing.assert_array_equal(sliced.features[name], column)
    assert shown(sliced, "device") == ["tv", NO_VALUE, NO_VALUE]


def test_validate_names_a_slice_that_no_record_has() -> None:
    records = records_of(["device", "devise", "country"])
    assert unheld_slices([decoded_of(records, [value(), value(device="tv")])]) == ["devise"]
    assert unheld_slices([decoded_of(records, [value()]), decoded_of(records, [value(device="tv", devise="x")])]) == []


def test_a_topic_may_have_a_slice_elsewhere() -> None:
    places = {"orders": {"fields": {"device": "client.device", "country": "land"}}}
    records = records_of(["device", "country"], by_topic=places)
    decoded = decoded_of(records, [value(client={"device": "tv"}, land="AT")], "orders")
    assert (shown(decoded, "device"), shown(decoded, "country")) == (["tv"], ["AT"])


def test_raw_records_have_a_slice_behind_all_else() -> None:
    records = RecordsSettings.model_validate(
        {"format": "raw", "features": {"x": "float32"}, "label": {"y": "float32"}, "slices": {"shop": "int64"}}
    )
    raw = np.array([1, 0], "<f4").tobytes() + np.array([77], "<i8").tobytes()
    assert shown(decoded_of(records, [raw]), "shop") == ["77"]
    paid = RecordsSettings.model_validate({"format": "raw", "features": {"x": "float32"}, "slices": {"paid": "bool"}})
    number = np.array([1], "<f4").tobytes()
    decoded = decoded_of(paid, [number + b"\1", number + b"\2"])
    assert shown(decoded, "paid") == ["true"]
    assert [(one.offset, one.reason, one.field) for one in decoded.refused] == [(1, Reason.OUT_OF_RANGE, "paid")]


@pytest.mark.parametrize(
    ("slices", "text"),
    [
        (["price"], "price is float32; a slice is by a text, a whole number or a truth value"),
        ({"device": "float32"}, "slices.device.dtype"),
        ({f"f{at}": "string" for at in range(9)}, "slices"),
    ],
)
def test_what_has_no_few_values_is_no_slice(load_text: Any, slices: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load_text(MILLRACE_RECORDS__SLICES=json.dumps(slices))
