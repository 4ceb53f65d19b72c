"""The verdicts of every format, as data: what the tests ask for and `docs/verdicts.md` prints.

`python -m tests.pipelines.formats.verdicts > docs/verdicts.md` writes the page.
"""

import struct
import sys
from typing import Any

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.formats.avro.avro_verdicts import AVRO, AVRO_REGISTRY
from tests.pipelines.formats.decoder_conformance import Case, Conformance, Outcome
from tests.pipelines.formats.example.example_verdicts import EXAMPLE
from tests.pipelines.formats.image.image_verdicts import IMAGES
from tests.pipelines.formats.json.framed_json_verdicts import FRAMED_JSON
from tests.pipelines.formats.json.nested_verdicts import NESTED
from tests.pipelines.formats.plain.whole_verdicts import BYTES, TEXT
from tests.pipelines.formats.protobuf.protobuf_verdicts import PROTOBUF, PROTOBUF_REGISTRY

JSON_SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32"),
        Field(name="hour", source="hour", dtype="uint8", missing=7),
        Field(name="big", source="big", dtype="int64", missing=0),
        Field(name="half", source="half", dtype="float16", missing=0.5),
        Field(name="seen", source="seen", dtype="bool", missing=False),
        Field(name="ad", source="ad", dtype="string", missing="none"),
        Field(name="pair", source="pair", dtype="float32", shape=(2,), missing=0.0),
        Field(name="grid", source="grid", dtype="int32", shape=(2, 1), missing=0),
        Field(name="words", source="words", dtype="string", shape=(2,), missing="-"),
        Field(name="age", source="age", dtype="uint8", min=18, max=120, missing=0),
        Field(name="shares", source="shares", dtype="float32", shape=(2,), min=0.0, max=0.1, missing=-1.0),
        Field(name="land", source="land", dtype="string", one_of=("DE", "NO"), missing="?"),
        Field(name="size", source="size", dtype="float16", one_of=(0.1, 2), missing=0),
        Field(name="last", source="last", dtype="float32", shape=(3,), pad=-1.0, max=9, missing=7.0),
        Field(name="tags", source="tags", dtype="string", shape=(2,), pad="", missing="none"),
    ),
    labels=(Field(name="double", source="double", dtype="float64", missing=0.0),),
)
_DEFAULTS: dict[str, object] = {
    "price": 1.0,
    "hour": 7,
    "big": 0,
    "half": 0.5,
    "seen": False,
    "ad": b"none",
    "pair": [0.0, 0.0],
    "grid": [[0], [0]],
    "words": [b"-", b"-"],
    "age": 0,
    "shares": [-1.0, -1.0],
    "land": b"?",
    "size": 0.0,
    "last": [7.0, -1.0, -1.0],
    "tags": [b"none", b""],
    "double": 0.0,
}


def _with(**values: object) -> Outcome:
    return {**_DEFAULTS, **values}


def _price(text: str, **more: str) -> bytes:
    members = {"price": text, **more}
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in members.items()) + "}").encode()


def _also(**more: str) -> bytes:
    return _price("1", **more)


_AT_BOUNDS = _with(age=18, shares=[0.0, 0.10000000149011612])
_MALFORMED = (Reason.MALFORMED, None)

JSON_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("only whitespace", b" \t\r\n", (Reason.EMPTY, None)),
    Case("one object", b'{"price": 1.5}', _with(price=1.5)),
    Case("whitespace around and inside, newlines included", b' \r\n{\n\t"price"\r:\n1.5 }\n', _with(price=1.5)),
    Case("a key written with escapes", b'{"\\u0070rice": 1.5}', _with(price=1.5)),
    Case("two objects", b'{"price": 1}{"price": 2}', _MALFORMED),
    Case("two objects with a newline between", b'{"price": 1}\n{"price": 2}', _MALFORMED),
    Case("an object and null", b'{"price": 1}null{}', _MALFORMED),
    Case("half an object", b'{"price": 1, "ad": {}', _MALFORMED),
    Case("the other half", b'{}, "price": 1}', _MALFORMED),
    Case("a list", b'[{"price": 1}]', _MALFORMED),
    Case("a number", b"1", _MALFORMED),
    Case("null", b"null", _MALFORMED),
    Case("a byte order mark", b'\xef\xbb\xbf{"price": 1}', _MALFORMED),
    Case("a NUL byte", b'{"price": 1}\0{}', _MALFORMED),
    Case("a comment", b'{/**/"price": 1}', _MALFORMED),
    Case("a comma too many", b'{"price": 1,}', _MALFORMED),
    Case("a key without quotes", b"{price: 1}", _MALFORMED),
    Case("a leading zero", b'{"price": 01}', _MALFORMED),
    Case("a raw newline in a string", _also(ad='"a\nb"'), _MALFORMED),
    Case("bytes that are not UTF-8", b'{"price": 1, "ad": "\xff"}', _MALFORMED),
    Case("bytes that are not UTF-8, where nobody asked", b'{"price": 1, "other": "\xed\xa0\x80"}', _MALFORMED),
    Case("a lone surrogate", _also(ad='"\\ud800"'), _MALFORMED),
    Case("a field twice", b'{"price": 1, "price": 2}', (Reason.MALFORMED, "price")),
    Case("another field twice", b'{"other": 1, "other": {"price": 2, "price": 3}, "price": 1}', _with()),
    Case("other fields of any type", _also(other='[null, {"price": "x"}, [[NaN]]]'), _with()),
    Case("a number beyond float64 in another field", _also(other='{"a": [1e400, "1e400"], "b": -1e400}'), _with()),
    Case("four hundred digits in another field", _also(other="9" * 400), _with()),
    Case("NaN in another field", _also(other="NaN"), _with()),
    Case("an infinity in another field", _also(other="[-Infinity]"), _with()),
    Case("a field absent", b'{"hour": 1}', (Reason.MISSING, "price")),
    Case("a field null", b'{"price": null}', (Reason.MISSING, "price")),
    Case("absent or null, with a `missing` value", _also(hour="null"), _with()),
    Case("null in a list", _also(pair="[1, null]"), (Reason.MISSING, "pair")),
    Case("null for a list in a list", _also(grid="[[1], null]"), (Reason.MISSING, "grid")),
    Case("an integer for a float", _price("3"), _with(price=3.0)),
    Case("minus zero", _price("-0", big="-0"), _with(price=-0.0)),
    Case("an exponent", _price("1E-2", double="1.5e300"), _with(price=0.009999999776482582, double=1.5e300)),
    Case("a fraction or an exponent for an integer", _also(big="1.0"), (Reason.WRONG_TYPE, "big")),
    Case("text for a number", _price('"1"'), (Reason.WRONG_TYPE, "price")),
    Case("a bool for a number", _price("true"), (Reason.WRONG_TYPE, "price")),
    Case("a number for a bool", _also(seen="1"), (Reason.WRONG_TYPE, "seen")),
    Case("a number for text", _also(ad="1"), (Reason.WRONG_TYPE, "ad")),
    Case("an object for a field", _price("{}"), (Reason.WRONG_TYPE, "price")),
    Case("another type in a list", _also(pair='[1, "2"]'), (Reason.WRONG_TYPE, "pair")),
    Case("a list for a scalar", _price("[1]"), (Reason.WRONG_SHAPE, "price")),
    Case("a scalar for a list", _also(pair="1"), (Reason.WRONG_SHAPE, "pair")),
    Case("too few elements", _also(pair="[1]"), (Reason.WRONG_SHAPE, "pair")),
    Case("too many elements", _also(pair="[1, 2, 3]"), (Reason.WRONG_SHAPE, "pair")),
    Case("a list nested too little", _also(grid="[1, 2]"), (Reason.WRONG_SHAPE, "grid")),
    Case("a nested list of another length", _also(grid="[[1], [2, 3]]"), (Reason.WRONG_SHAPE, "grid")),
    Case(
        "lists of the right shape", _also(pair="[1, 2.5]", grid="[[-1], [2]]"), _with(pair=[1.0, 2.5], grid=[[-1], [2]])
    ),
    Case(
        "text, escapes and all",
        _also(ad='"\\u00e9\\n\\u0000é😀\\ud83d\\ude00}null"'),
        _with(ad="é\n\0é😀😀}null".encode()),
    ),
    Case("a list of texts", _also(words='["", "b"]'), _with(words=[b"", b"b"])),
    Case("true", _also(seen="true"), _with(seen=True)),
    Case("the greatest int64", _also(big="9223372036854775807"), _with(big=9223372036854775807)),
    Case("an integer beyond int64", _also(big="9223372036854775808"), (Reason.OUT_OF_RANGE, "big")),
    Case("an integer beyond its dtype", _also(hour="256"), (Reason.OUT_OF_RANGE, "hour")),
    Case("a negative integer for an unsigned one", _also(hour="-1"), (Reason.OUT_OF_RANGE, "hour")),
    Case("a number beyond float32", _price("1e39"), (Reason.OUT_OF_RANGE, "price")),
    Case("a number beyond float64", _also(double="1e400"), (Reason.OUT_OF_RANGE, "double")),
    Case("four hundred digits", _also(double="9" * 400), (Reason.OUT_OF_RANGE, "double")),
    Case("a number beyond float16", _also(half="65520"), (Reason.OUT_OF_RANGE, "half")),
    Case("a number too small for its dtype", _price("1e-60"), _with(price=0.0)),
    Case("NaN", _price("NaN"), (Reason.NOT_FINITE, "price")),
    Case("Infinity", _price("-Infinity"), (Reason.NOT_FINITE, "price")),
    Case(
        "a number beyond float32 beside an infinity in another field",
        _price("1e39", other="[Infinity]"),
        (Reason.OUT_OF_RANGE, "price"),
    ),
    Case(
        "NaN beside a number beyond float32, and Inf in a text of another field",
        _also(pair="[NaN, 1e39]", other='"Info"'),
        (Reason.OUT_OF_RANGE, "pair"),
    ),
    Case("Inf", _price("Inf"), (Reason.NOT_FINITE, "price")),
    Case("NaN in a list", _also(pair="[1, NaN]"), (Reason.NOT_FINITE, "pair")),
    Case("NaN for an integer", _also(big="NaN"), (Reason.NOT_FINITE, "big")),
    Case("a number at its `min`, another at its `max`", _also(age="18", shares="[0, 0.1]"), _AT_BOUNDS),
    Case("a number below its `min`", _also(age="17"), (Reason.OUT_OF_RANGE, "age")),
    Case("a number above its `max`", _also(age="121"), (Reason.OUT_OF_RANGE, "age")),
    Case("a number in a list above its `max`", _also(shares="[0, 0.1000001]"), (Reason.OUT_OF_RANGE, "shares")),
    Case("NaN where there are bounds", _also(shares="[0, NaN]"), (Reason.NOT_FINITE, "shares")),
    Case("an infinity where there are bounds", _also(shares="[0, Infinity]"), (Reason.NOT_FINITE, "shares")),
    Case("a value that `one_of` lists", _also(land='"NO"', size="0.1"), _with(land=b"NO", size=0.0999755859375)),
    Case("text that `one_of` does not list", _also(land='"no"'), (Reason.NOT_ALLOWED, "land")),
    Case("a number that `one_of` does not list", _also(size="3"), (Reason.NOT_ALLOWED, "size")),
    Case("the `missing` value, written out", _also(land='"?"'), (Reason.NOT_ALLOWED, "land")),
    Case(
        "lists shorter than their bound, padded",
        _also(last="[1]", tags='["a"]'),
        _with(last=[1.0, -1.0, -1.0], tags=[b"a", b""]),
    ),
    Case("empty lists, padded", _also(last="[]", tags="[]"), _with(last=[-1.0, -1.0, -1.0], tags=[b"", b""])),
    Case(
        "lists longer than their bound, cut",
        _also(last="[1, 2, 3, 4]", tags='["a", "b", "c"]'),
        _with(last=[1.0, 2.0, 3.0], tags=[b"a", b"b"]),
    ),
    Case("a bad element where the list is cut", _also(last="[1, 2, 3, 99]"), (Reason.OUT_OF_RANGE, "last")),
    Case("null in a list that is padded", _also(last="[1, null]"), (Reason.MISSING, "last")),
    Case("a number for a list that is padded", _also(last="1"), (Reason.WRONG_SHAPE, "last")),
)

RAW_SCHEMA = Schema(
    features=(
        Field(name="x", source="x", dtype="float32", shape=(2,)),
        Field(name="hour", source="hour", dtype="uint16"),
        Field(name="seen", source="seen", dtype="bool"),
        Field(name="true", source="true", dtype="bool", one_of=(True,)),
        Field(name="shares", source="shares", dtype="float32", shape=(2,), min=0.0, max=0.1),
        Field(name="size", source="size", dtype="int16", one_of=(-1, 300)),
    ),
    labels=(Field(name="half", source="half", dtype="float16"),),
    event_time=Field(name="event_time", source="at", dtype="int64"),
)


def _raw(**other: object) -> bytes:
    values: dict[str, Any] = {**_GOOD, **other}
    parts = [*values["x"], values["hour"], values["seen"], values["true"], *values["shares"], values["size"]]
    return struct.pack("<2fHBB2fheq", *parts, values["half"], values["at"])


_GOOD: dict[str, object] = {
    "x": [1.0, 2.0],
    "hour": 3,
    "seen": True,
    "true": True,
    "shares": [0.0, 0.10000000149011612],
    "size": -1,
    "half": 0.5,
    "at": -4,
}

RAW_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("exactly the schema's bytes", _raw(), _GOOD),
    Case("a byte too few", _raw()[:-1], _MALFORMED),
    Case("a byte too many", _raw() + b"\0", _MALFORMED),
    Case("two records in one", _raw() * 2, _MALFORMED),
    Case("NaN", _raw(x=(1.0, float("nan"))), (Reason.NOT_FINITE, "x")),
    Case("an infinity", _raw(half=float("-inf")), (Reason.NOT_FINITE, "half")),
    Case("a bool byte that is neither 0 nor 1", _raw(seen=2), (Reason.OUT_OF_RANGE, "seen")),
    Case("two fields at fault: the schema's first", _raw(x=(float("inf"), 0.0), seen=255), (Reason.NOT_FINITE, "x")),
    Case("a number below its `min`", _raw(shares=(-1e-9, 0.0)), (Reason.OUT_OF_RANGE, "shares")),
    Case("a number above its `max`", _raw(shares=(0.0, 0.10000001)), (Reason.OUT_OF_RANGE, "shares")),
    Case("NaN where there are bounds", _raw(shares=(0.0, float("nan"))), (Reason.NOT_FINITE, "shares")),
    Case("an infinity where there are bounds", _raw(shares=(0.0, float("inf"))), (Reason.NOT_FINITE, "shares")),
    Case("a value that `one_of` lists", _raw(size=300), {**_GOOD, "size": 300}),
    Case("a number that `one_of` does not list", _raw(size=0), (Reason.NOT_ALLOWED, "size")),
    Case("a bool that `one_of` does not list", _raw(true=False), (Reason.NOT_ALLOWED, "true")),
)

CSV_SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32"),
        Field(name="hour", source="hour", dtype="uint8", missing=7),
        Field(name="big", source="big", dtype="int64", missing=0),
        Field(name="half", source="half", dtype="float16", missing=0.5),
        Field(name="seen", source="seen", dtype="bool", missing=False),
        Field(name="pair", source="pair", dtype="float64", shape=(2,), missing=0.0),
        Field(name="ad", source="ad", dtype="string", missing="none"),
        Field(name="land", source="land", dtype="string", one_of=("DE", "NO"), missing="?"),
        Field(name="share", source="share", dtype="float32", max=0.1, missing=-1.0),
    ),
)
_CSV_COLUMNS = ("price", "hour", "big", "other", "half", "seen", "pair", "ad", "land", "share")
_CSV_GOOD: dict[str, object] = {
    "price": 1.5,
    "hour": 7,
    "big": 0,
    "half": 0.5,
    "seen": False,
    "pair": [0.0, 0.0],
    "ad": b"none",
    "land": b"?",
    "share": -1.0,
}


def _csv(**texts: str) -> bytes:
    """Return a row with this price only, except for the columns that are given."""
    told = {"price": "1.5", "pair": ",", **texts}
    return ",".join(told.get(column, "") for column in _CSV_COLUMNS).encode()


def _row(**values: object) -> Outcome:
    return {**_CSV_GOOD, **values}


CSV_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("only a line break", b"\r\n", (Reason.EMPTY, None)),
    Case("one row", _csv(), _row()),
    Case("one row and a line break", _csv() + b"\n", _row()),
    Case("one row and a line break as Windows writes it", _csv() + b"\r\n", _row()),
    Case(
        "every column in quotes",
        _csv(price='"1.5"', hour='"3"', seen='"true"', ad='"b"'),
        _row(hour=3, seen=True, ad=b"b"),
    ),
    Case("a delimiter, a quote and a line break in quotes", _csv(ad='"a,""b""\r\nc"'), _row(ad=b'a,"b"\r\nc')),
    Case("two rows", _csv() + b"\n" + _csv(), _MALFORMED),
    Case("a row and an empty one", _csv() + b"\n\n", _MALFORMED),
    Case("a column too few", _csv().rpartition(b",")[0], _MALFORMED),
    Case("a column too many", _csv() + b",", _MALFORMED),
    Case("only spaces", b"  ", _MALFORMED),
    Case("a quote that opens and does not close", _csv(ad='"a'), _MALFORMED),
    Case("a quote that closes and has not opened", _csv(ad='a"'), _MALFORMED),
    Case("text after a closing quote", _csv(ad='"a"b'), _MALFORMED),
    Case("a space before a quote", _csv(ad=' "a"'), _MALFORMED),
    Case("a quote in the middle", _csv(ad='a"b'), _MALFORMED),
    Case("a quote that is the whole row", b'"', _MALFORMED),
    Case("a byte order mark", b"\xef\xbb\xbf" + _csv(), _MALFORMED),
    Case("bytes that are not UTF-8", _csv(ad="x").replace(b"x", b"\xff"), _MALFORMED),
    Case("bytes that are not UTF-8, where nobody asked", _csv(other="x").replace(b"x", b"\xc3"), _MALFORMED),
    Case("a backslash is a character", _csv(ad="a\\"), _row(ad=b"a\\")),
    Case("a NUL byte", _csv(ad="a\0b"), _row(ad=b"a\0b")),
    Case("other columns of any text", _csv(other='"a ""quoted"" one, and more"'), _row()),
    Case("an empty column", _csv(price=""), (Reason.MISSING, "price")),
    Case("an empty column, with a `missing` value", _csv(), _row()),
    Case("quotes around nothing, for a number", _csv(price='""'), (Reason.MISSING, "price")),
    Case("quotes around nothing, for text", _csv(ad='""'), _row(ad=b"")),
    Case("only spaces for a number", _csv(hour="  "), _row()),
    Case("one element of several empty", _csv(pair="1,"), (Reason.MISSING, "pair")),
    Case("spaces around a number", _csv(price=" 1.5 ", hour="\t3"), _row(hour=3)),
    Case("spaces around text are text", _csv(ad=" b "), _row(ad=b" b ")),
    Case("an integer for a float", _csv(price="3"), _row(price=3.0)),
    Case("a plus sign, an exponent", _csv(price="+15e-1", hour="+3"), _row(hour=3)),
    Case("leading zeros", _csv(price="01.5", hour="007"), _row()),
    Case("an integer in hexadecimal", _csv(big="0x1F"), _row(big=31)),
    Case("a comma for a point", _csv(price='"1,5"'), (Reason.WRONG_TYPE, "price")),
    Case("text for a number", _csv(price="x"), (Reason.WRONG_TYPE, "price")),
    Case("a fraction or an exponent for an integer", _csv(big="1.0"), (Reason.WRONG_TYPE, "big")),
    Case("a number for a bool", _csv(seen="1"), _row(seen=True)),
    Case("TRUE, True and true", _csv(seen="TRUE"), _row(seen=True)),
    Case("another word for a bool", _csv(seen="yes"), (Reason.WRONG_TYPE, "seen")),
    Case("elements side by side", _csv(pair="1,2.5"), _row(pair=[1.0, 2.5])),
    Case("text for an element", _csv(pair="1,x"), (Reason.WRONG_TYPE, "pair")),
    Case("the greatest int64", _csv(big="9223372036854775807"), _row(big=9223372036854775807)),
    Case("an integer beyond int64", _csv(big="9223372036854775808"), (Reason.OUT_OF_RANGE, "big")),
    Case("an integer beyond its dtype", _csv(hour="256"), (Reason.OUT_OF_RANGE, "hour")),
    Case("a number beyond float32", _csv(price="1e39"), (Reason.OUT_OF_RANGE, "price")),
    Case("a number beyond float64", _csv(pair="1e400,1"), (Reason.OUT_OF_RANGE, "pair")),
    Case("a number beyond float16", _csv(half="65520"), (Reason.OUT_OF_RANGE, "half")),
    Case("a number too small for its dtype", _csv(price="1e-60"), _row(price=0.0)),
    Case("NaN", _csv(price="nan"), (Reason.NOT_FINITE, "price")),
    Case("an infinity", _csv(price="-Infinity"), (Reason.NOT_FINITE, "price")),
    Case("NaN for an integer", _csv(big="NaN"), (Reason.WRONG_TYPE, "big")),
    Case("a number above its `max`", _csv(share="0.11"), (Reason.OUT_OF_RANGE, "share")),
    Case("a number at its `max`", _csv(share="0.1"), _row(share=0.10000000149011612)),
    Case("a value that `one_of` lists", _csv(land="NO"), _row(land=b"NO")),
    Case("text that `one_of` does not list", _csv(land="no"), (Reason.NOT_ALLOWED, "land")),
    Case("two fields at fault: the schema's first", _csv(hour="x", land="no"), (Reason.WRONG_TYPE, "hour")),
)

LISTS_SCHEMA = Schema(
    features=(
        Field(name="pair", source="pair", dtype="float32", shape=(2,)),
        Field(name="words", source="words", dtype="string", shape=(2,), missing="-"),
    ),
    labels=(Field(name="y", source="y", dtype="int8"),),
)
_LISTED: dict[str, object] = {"pair": [1.0, 2.5], "words": [b"-", b"-"], "y": 1}
LISTS_CASES = (
    Case("lists of the right length", b"1;2.5\ta;\t1", {**_LISTED, "words": [b"a", b""]}),
    Case("an empty column, with a `missing` value", b"1;2.5\t\t1", _LISTED),
    Case("an empty column, without", b"\t\t1", (Reason.MISSING, "pair")),
    Case("an empty element", b"1;\t\t1", (Reason.MISSING, "pair")),
    Case("too few elements", b"1\t\t1", (Reason.WRONG_SHAPE, "pair")),
    Case("too many elements", b"1;2;3\t\t1", (Reason.WRONG_SHAPE, "pair")),
    Case("text for an element", b"1;x\t\t1", (Reason.WRONG_TYPE, "pair")),
    Case("text among too many elements", b"1;2;x\t\t1", (Reason.WRONG_TYPE, "pair")),
    Case("spaces around an element", b"1; 2.5\t\t1", _LISTED),
    Case("an element beyond float32", b"1;1e39\t\t1", (Reason.OUT_OF_RANGE, "pair")),
    Case("an element that is infinite", b"1;inf\t\t1", (Reason.NOT_FINITE, "pair")),
    Case("a quote, where quotes are off", b'1;2.5\t";"\t1', {**_LISTED, "words": [b'"', b'"']}),
)

JSON = Conformance(name="json", decoder=make_decoder("json", JSON_SCHEMA), cases=JSON_CASES)
RAW = Conformance(name="raw", decoder=make_decoder("raw", RAW_SCHEMA), cases=RAW_CASES)
CSV = Conformance(
    name="csv", decoder=make_decoder("csv", CSV_SCHEMA, CsvSettings(columns=_CSV_COLUMNS)), cases=CSV_CASES
)
CSV_LISTS = Conformance(
    name="csv with lists in a column",
    decoder=make_decoder("csv", LISTS_SCHEMA, CsvSettings(delimiter="\t", quote=None, lists=";")),
    cases=LISTS_CASES,
)
SUBJECTS = (
    JSON,
    NESTED,
    FRAMED_JSON,
    CSV,
    CSV_LISTS,
    RAW,
    EXAMPLE,
    AVRO,
    AVRO_REGISTRY,
    PROTOBUF,
    PROTOBUF_REGISTRY,
    TEXT,
    BYTES,
    IMAGES,
)

_HEAD = """# Verdicts

What becomes of each kind of record, format by format: it is kept, or set aside under the
[reason](guarantees.md#reasons) that stands here. Each row is a test. [Formats](formats.md) describes how records are
read. `python -m tests.pipelines.formats.verdicts > docs/verdicts.md` writes this page.
"""


def page() -> str:
    """Return the page of all verdicts."""
    parts = [_HEAD]
    for subject in SUBJECTS:
        rows = "\n".join(f"| {case.what} | {_verdict(case)} |" for case in subject.cases)
        parts.append(f"## {subject.name}\n\n| a record with, or that is | verdict |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def _verdict(case: Case) -> str:
    return "kept" if isinstance(case.outcome, dict) else f"`{case.outcome[0]}`"


if __name__ == "__main__":
    sys.stdout.write(page())
