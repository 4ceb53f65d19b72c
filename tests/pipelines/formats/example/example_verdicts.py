"""The verdicts on `tf.train.Example` records, as data."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.files.example_files import example
from tests.pipelines.formats.decoder_conformance import Case, Conformance, Outcome

SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32", missing=-1.0),
        Field(name="pair", source="pair", dtype="float32", shape=(2,), max=50, missing=0.0),
        Field(name="grid", source="grid", dtype="int32", shape=(2, 2), missing=0),
        Field(name="level", source="user.level", dtype="int8", missing=7),
        Field(name="double", source="double", dtype="float64", missing=0.0),
        Field(name="half", source="half", dtype="float16", missing=0.5),
        Field(name="seen", source="seen", dtype="bool", missing=False),
        Field(name="ad", source="ad", dtype="string", missing="none"),
        Field(name="land", source="land", dtype="string", one_of=("DE", "NO"), missing="?"),
        Field(name="size", source="size", dtype="int16", one_of=(-1, 300), missing=0),
        Field(name="last", source="last", dtype="float32", shape=(3,), pad=-1.0, max=9),
        Field(name="rows", source="rows", dtype="int64", shape=(2, 2), pad=0),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
)
_DEFAULTS: dict[str, object] = {
    "price": -1.0,
    "pair": [0.0, 0.0],
    "grid": [[0, 0], [0, 0]],
    "user.level": 7,
    "double": 0.0,
    "half": 0.5,
    "seen": False,
    "ad": b"none",
    "land": b"?",
    "size": 0,
    "last": [-1.0, -1.0, -1.0],
    "rows": [[0, 0], [0, 0]],
    "y": 1.0,
}


def _with(**values: object) -> Outcome:
    return {**_DEFAULTS, **values}


def _example(**values: object) -> bytes:
    return example({"y": 1.0, **values})


_FAR = b"\n-\n\r\n\x01y\x12\x08\x12\x06\n\x91\xad\xe0\x80?" + bytes.fromhex(
    "0a1c0a046c617374121412120a100000803f000000400000404000008040"
)

CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("one Example", _example(price=1.5), _with(price=1.5)),
    Case("an Example cut short", _example(price=1.5)[:-1], (Reason.MALFORMED, None)),
    Case("bytes that are no Example", b"\xff\xff\xff", (Reason.MALFORMED, None)),
    Case("a list whose length is far beyond the record", _FAR, (Reason.MALFORMED, None)),
    Case("text", b'{"y": 1}', (Reason.MALFORMED, None)),
    Case("two Examples, the later with another field", _example() + example({"price": 2.0}), _with(price=2.0)),
    Case("a dot in a name", example({"y": 1.0, "user.level": 3}), {**_DEFAULTS, "user.level": 3}),
    Case("other features of any type", _example(other=b"\xff", more=[1, 2]), _with()),
    Case("a feature absent", example({"price": 1.5}), (Reason.MISSING, "y")),
    Case("a feature that holds nothing", example({"price": 1.5, "y": ()}), (Reason.MISSING, "y")),
    Case("absent or empty, with a `missing` value", _example(ad=()), _with()),
    Case("an integer for a float", _example(price=3, pair=[1, 2]), _with(price=3.0, pair=[1.0, 2.0])),
    Case("an integer beyond float32's digits, for a float64", _example(double=2**53 - 1), _with(double=2.0**53 - 1)),
    Case("a float for an integer", _example(size=3.0), (Reason.WRONG_TYPE, "size")),
    Case("text for a number", _example(price=b"1.5"), (Reason.WRONG_TYPE, "price")),
    Case("a number for text", _example(ad=1), (Reason.WRONG_TYPE, "ad")),
    Case("text for a bool", _example(seen=b"true"), (Reason.WRONG_TYPE, "seen")),
    Case("0 or 1 for a bool", _example(seen=1), _with(seen=True)),
    Case("another integer for a bool", _example(seen=2), (Reason.OUT_OF_RANGE, "seen")),
    Case("two elements for one", _example(price=[1.0, 2.0]), (Reason.WRONG_SHAPE, "price")),
    Case("too few elements", _example(pair=[1.0]), (Reason.WRONG_SHAPE, "pair")),
    Case("a grid, its rows one after another", _example(grid=[1, 2, 3, 4]), _with(grid=[[1, 2], [3, 4]])),
    Case("text, any bytes", _example(ad=b"\xff\0"), _with(ad=b"\xff\0")),
    Case("empty text", _example(ad=b""), _with(ad=b"")),
    Case("an integer beyond its dtype", _example(size=2**15), (Reason.OUT_OF_RANGE, "size")),
    Case("a number beyond float16", _example(half=65520.0), (Reason.OUT_OF_RANGE, "half")),
    Case("NaN", _example(price=float("nan")), (Reason.NOT_FINITE, "price")),
    Case("an infinity in a list", _example(pair=[1.0, float("-inf")]), (Reason.NOT_FINITE, "pair")),
    Case("a number above its `max`", _example(pair=[1.0, 51.0]), (Reason.OUT_OF_RANGE, "pair")),
    Case("a value that `one_of` lists", _example(land=b"NO", size=300), _with(land=b"NO", size=300)),
    Case("text that `one_of` does not list", _example(land=b"no"), (Reason.NOT_ALLOWED, "land")),
    Case("a number that `one_of` does not list", _example(size=0), (Reason.NOT_ALLOWED, "size")),
    Case(
        "lists shorter than their bound, padded",
        _example(last=[1.0], rows=[1, 2]),
        _with(last=[1.0, -1.0, -1.0], rows=[[1, 2], [0, 0]]),
    ),
    Case("a list longer than its bound, cut", _example(last=[1.0, 2.0, 3.0, 4.0]), _with(last=[1.0, 2.0, 3.0])),
    Case("a bad element where the list is cut", _example(last=[1.0] * 3 + [99.0]), (Reason.OUT_OF_RANGE, "last")),
    Case("half a row in a list of rows", _example(rows=[1, 2, 3]), (Reason.WRONG_SHAPE, "rows")),
    Case("two features at fault: the schema's first", _example(price=b"x", ad=1), (Reason.WRONG_TYPE, "price")),
)

EXAMPLE = Conformance(name="example", decoder=make_decoder("example", SCHEMA), cases=CASES)
