"""Records that are one value: beside fields of the envelope, at random, and with fields that do not fit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import decode_chunk
from tests.pipelines.formats.decoder_conformance import outcomes
from tests.pipelines.formats.plain.whole_verdicts import TEXT
from tests.pipelines.stream.test_decode import chunk_of

PIECES = st.sampled_from([b"a", b"\n", b"\xc3", b"\xa4", b"\xf0\x9f", b"\x98\x80", b"\0", b"\xed\xa0\x80", b""])


@given(records=st.lists(st.builds(b"".join, st.lists(PIECES, max_size=5)), max_size=8))
def test_a_text_is_what_python_reads_as_utf8(records: list[bytes]) -> None:
    for record, outcome in zip(records, outcomes(TEXT.decoder, records), strict=True):
        try:
            record.decode()
        except UnicodeDecodeError:
            assert outcome == (Reason.MALFORMED, None)
        else:
            assert outcome == ({"$value": record} if record else (Reason.EMPTY, None))


def test_a_text_stands_beside_fields_of_the_envelope_and_gives_the_index_of_a_class() -> None:
    schema = Schema(
        features=(
            Field(name="review", source="$value", dtype="string"),
            Field(name="at", source="$offset", dtype="int64"),
        ),
        labels=(Field(name="liked", source="$key", dtype="int32", classes=("no", "yes")),),
    )
    chunk = replace(chunk_of([b"good", b"\xff", b"bad"]), keys=[b"yes", b"no", b"no"])
    decoded = decode_chunk(chunk, make_decoder("text", schema))
    assert decoded.features["review"].tolist() == [b"good", b"bad"]
    assert decoded.labels["liked"].tolist() == [1, 0]
    assert decoded.features["at"].tolist() == decoded.offsets.tolist()
    assert [one.reason for one in decoded.refused] == [Reason.MALFORMED]


@pytest.mark.parametrize(
    ("form", "field", "says"),
    [
        ("text", Field(name="a", source="a", dtype="string"), r"a text record has none; write field: \$value"),
        ("bytes", Field(name="a", source="$value", dtype="float32"), "one text; write dtype: string, without a shape"),
        ("text", Field(name="a", source="$value", dtype="string", shape=(2,)), "write dtype: string, without a shape"),
        ("text", Field(name="a", source="$value", dtype="string", missing="-"), "an empty record is set aside"),
        ("json", Field(name="a", source="$value", dtype="string"), "format: json reads fields of it; name one"),
        ("csv", Field(name="a", source="$value", dtype="string"), "format: csv reads fields of it; name one"),
        ("text", Field(name="a", source="$key", dtype="string"), "no field is read from the value"),
    ],
)
def test_a_field_that_does_not_fit_the_whole_value_is_a_setting_error(form: str, field: Field, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_decoder(form, Schema(features=(field,)))
