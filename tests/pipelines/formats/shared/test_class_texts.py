"""Texts of classes, which the model gets as their places in a list, in every format and shape."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import decode_chunk
from tests.pipelines.formats.shared.test_record_envelope import Case, chunk_of

KIND = Field(name="kind", source="kind", dtype="int32", one_of=(0, 1, 2), classes=("spam", "né", ""))
X = Field(name="x", source="x", dtype="int8")


def field(**other: Any) -> Field:
    return Field(
        **{**{name: getattr(KIND, name) for name in ("name", "source", "dtype", "one_of", "classes")}, **other}
    )


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_text_is_its_place_in_the_list(form: str) -> None:
    texts = ["né", "spam", "other", "né", "Spam"]
    values = [json.dumps({"x": 1, "kind": text}).encode() if form == "json" else f"1,{text}".encode() for text in texts]
    decoder = make_decoder(form, Schema(features=(X,), labels=(KIND,)), CsvSettings())
    decoded = decode_chunk(chunk_of([Case("", None, value=value) for value in values]), decoder)
    np.testing.assert_array_equal(decoded.labels["kind"], np.array([1, 0, 1], np.int32), strict=True)
    assert [(one.offset, one.reason, one.field) for one in decoded.refused] == [
        (102, Reason.NOT_ALLOWED, "kind"),
        (104, Reason.NOT_ALLOWED, "kind"),
    ]


@given(st.lists(st.sampled_from([0, 1, 2, None]), max_size=6))
def test_a_missing_text_is_the_place_of_another(places: list[int | None]) -> None:
    decoder = make_decoder("json", Schema(features=(X, field(missing=2))))
    values = [json.dumps({"x": 1, "kind": None if at is None else KIND.classes[at]}).encode() for at in places]  # type: ignore[index]
    decoded = decode_chunk(chunk_of([Case("", None, value=value) for value in values]), decoder)
    assert decoded.features["kind"].tolist() == [2 if at is None else at for at in places]
    assert decoded.features["kind"].dtype == np.int32


def test_lists_of_texts_are_padded_with_a_place() -> None:
    tags = field(source="items[].kind", shape=(3,), pad=2, length="known", dtype="uint8")
    decoder = make_decoder("json", Schema(features=(X, tags)))
    values = [b'{"x":1,"items":[{"kind":"spam"}]}', b'{"x":1,"items":[]}', b'{"x":1,"items":[{"kind":"x"}]}']
    decoded = decode_chunk(chunk_of([Case("", None, value=value) for value in values]), decoder)
    assert decoded.features["kind"].tolist() == [[0, 2, 2], [2, 2, 2]]
    assert decoded.features["known"].tolist() == [1, 0]
    assert [one.reason for one in decoded.refused] == [Reason.NOT_ALLOWED]


def test_a_header_or_a_topic_is_a_class() -> None:
    topic = field(name="topic", source="$topic", classes=("views", "clicks"), one_of=(0, 1))
    raw = make_decoder("raw", Schema(features=(X, topic), labels=(field(source="$header.kind"),)))
    cases = [Case("", None, headers=(("kind", text),), value=struct.pack("b", 3)) for text in (b"spam", b"x", b"\xff")]
    decoded = decode_chunk(chunk_of(cases), raw)
    assert (decoded.features["topic"].tolist(), decoded.labels["kind"].tolist()) == ([1], [0])
    assert [one.reason for one in decoded.refused] == [Reason.NOT_ALLOWED] * 2


def test_anything_but_text_is_a_wrong_type() -> None:
    decoder = make_decoder("json", Schema(features=(X, KIND)))
    decoded = decode_chunk(chunk_of([Case("", None, value=b'{"x":1,"kind":0}')]), decoder)
    assert [(one.reason, one.field) for one in decoded.refused] == [(Reason.WRONG_TYPE, "kind")]
