"""The verdicts of every format, as data: what the tests ask for and `docs/formats.md` prints."""

import struct
from typing import Any

from consumers.reasons import Reason
from pipelines.decoders import make_decoder
from pipelines.schema import Field, Schema
from tests.pipelines.decoder_conformance import Case, Conformance, Outcome

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
    Case("a number beyond float64 in another field", _also(other="1e400"), _MALFORMED),
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

JSON = Conformance(name="json", decoder=make_decoder("json", JSON_SCHEMA), cases=JSON_CASES)
RAW = Conformance(name="raw", decoder=make_decoder("raw", RAW_SCHEMA), cases=RAW_CASES)
SUBJECTS = (JSON, RAW)
