"""The verdicts on records that are one value, as data."""

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.formats.decoder_conformance import Case, Conformance, Outcome

TEXT_SCHEMA = Schema(features=(Field(name="review", source="$value", dtype="string"),))
LISTED = ("\N{GREEK SMALL LETTER ALPHA}", "b c", "-")
BYTES_SCHEMA = Schema(features=(Field(name="image", source="$value", dtype="string", one_of=(*LISTED, "\0")),))


def _is(value: bytes) -> Outcome:
    return {"$value": value}


TEXT_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("a text", b"what a film", _is(b"what a film")),
    Case("text beyond ASCII", "Käse 😀".encode(), _is("Käse 😀".encode())),
    Case("spaces and line breaks alone", b" \r\n", _is(b" \r\n")),
    Case("a NUL byte", b"a\0b", _is(b"a\0b")),
    Case("a byte order mark", b"\xef\xbb\xbfa", _is(b"\xef\xbb\xbfa")),
    Case("bytes that are not UTF-8", b"a\xff", (Reason.MALFORMED, None)),
    Case("a character cut short", "ä".encode()[:1], (Reason.MALFORMED, None)),
    Case("the rest of a character", "ä".encode()[1:], (Reason.MALFORMED, None)),
    Case("a lone surrogate", b"\xed\xa0\x80", (Reason.MALFORMED, None)),
)
BYTES_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("a value that `one_of` lists", b"b c", _is(b"b c")),
    Case("a listed value beyond ASCII", LISTED[0].encode(), _is(LISTED[0].encode())),
    Case("one byte that is zero, and listed", b"\0", _is(b"\0")),
    Case("bytes that `one_of` does not list", b"\xff\xd8", (Reason.NOT_ALLOWED, "$value")),
    Case("a listed value and a byte more", b"-\n", (Reason.NOT_ALLOWED, "$value")),
)

TEXT = Conformance(name="text", decoder=make_decoder("text", TEXT_SCHEMA), cases=TEXT_CASES)
BYTES = Conformance(name="bytes", decoder=make_decoder("bytes", BYTES_SCHEMA), cases=BYTES_CASES)
