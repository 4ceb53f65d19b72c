"""The harness's records in every format, and for each format poison of many kinds, each with the verdict it must meet.

A record is the content that `records.good` gives; a form says how it is written, and what can be wrong with it. The
expected verdicts are those of docs/formats.md, written down by hand.
"""

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import fastavro
from google.protobuf.message_factory import GetMessageClass

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.shared.descriptors import compiled_texts, message_of
from tests.faults.harness.project import FEATURES
from tests.faults.harness.records import WIDTH, ExpectedPosition, Verdict, good

Content = dict[str, Any]
Make = Callable[[Content], bytes | None]
LABEL = {"y": {"dtype": "float32", "one_of": [0, 1]}}
RAW = "<4ffqif"


@dataclass(frozen=True, slots=True)
class Poison:
    """One way in which a record can be bad."""

    name: str
    reason: Reason
    make: Make


@dataclass(frozen=True, slots=True)
class Form:
    """A way to write records."""

    name: str
    records: Mapping[str, Any]
    """The section of the config."""
    render: Callable[[Content], bytes]
    poison: Sequence[Poison]
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies beside the config, by name."""
    build: str = "./model.py:build_model"
    """Which model learns them."""


@dataclass(slots=True)
class PoisonedStream:
    """Records of one form, some of them bad; it keeps which one is bad in which way."""

    form: Form
    share: float
    kinds: dict[tuple[int, int], str] = field(default_factory=dict)
    """By partition and offset: the name of what is wrong."""

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        """Draw one record for this place, and its verdict."""
        content = good(place, random)
        if random.random() >= self.share:
            return self.form.render(content), None
        poison = random.choice(self.form.poison)
        self.kinds[place.partition, place.offset] = poison.name
        return poison.make(content), poison.reason


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _nested(content: Mapping[str, Any]) -> bytes:
    about = {"id": content["id"], "who": {"partition": content["partition"]}}
    points = [{"x": x, "kind": "n"} for x in content["x"]] if isinstance(content["x"], list) else content["x"]
    return _json({"about": about, "points": points, "curse": content["curse"], "y": content["y"]})


def _csv(content: Mapping[str, Any]) -> bytes:
    x = ";".join(map(str, content["x"]))
    return ",".join(map(str, (content["id"], content["partition"], content["curse"], x, content["y"]))).encode()


def _raw(content: Mapping[str, Any]) -> bytes:
    return struct.pack(RAW, *content["x"], content["curse"], content["id"], content["partition"], content["y"])


def _example(content: Mapping[str, Any]) -> bytes:
    """Return a `tf.train.Example`, each value by the list that its Python type goes into."""
    from tensorflow.train import BytesList, Example, Feature, Features, FloatList, Int64List

    features = {}
    for name, value in content.items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(one, str) for one in values):
            features[name] = Feature(bytes_list=BytesList(value=[one.encode() for one in values]))
        elif values and all(isinstance(one, int) for one in values):
            features[name] = Feature(int64_list=Int64List(value=values))
        else:
            features[name] = Feature(float_list=FloatList(value=values))
    written: bytes = Example(features=Features(feature=features)).SerializeToString()
    return written


def _values(render: Callable[[Content], bytes], *, texts: bool = True) -> list[Poison]:
    """What can be wrong with the values of any format that names its fields."""

    def put(**changed: Any) -> Make:
        return lambda content: render({**content, **changed})

    numbers = [
        Poison("infinite x", Reason.NOT_FINITE, put(x=[0.0, float("inf"), 0.0, 0.0])),
        Poison("x that is no number", Reason.NOT_FINITE, put(x=[0.0, 0.0, float("nan"), 0.0])),
        Poison("label that is not allowed", Reason.NOT_ALLOWED, put(y=0.5)),
        Poison("partition beyond its dtype", Reason.OUT_OF_RANGE, put(partition=2**40)),
        Poison("too few x", Reason.WRONG_SHAPE, put(x=[1.0, 2.0, 3.0])),
        Poison("too many x", Reason.WRONG_SHAPE, put(x=[1.0] * (WIDTH + 1))),
    ]
    return numbers + [Poison("text for a number", Reason.WRONG_TYPE, put(id="seven")) for _ in range(texts)]


def _texts(render: Callable[[Content], bytes]) -> list[Poison]:
    """What can be wrong with a text that holds one object."""

    def around(before: bytes, behind: bytes) -> Make:
        return lambda content: before + render(content) + behind

    wrong = {
        "half of it": lambda content: render(content)[: len(render(content)) // 2],
        "without its end": lambda content: render(content)[:-1],
        "two objects": lambda content: render(content) * 2,
        "two lines": lambda content: render(content) + b"\n" + render(content),
        "in a list": around(b"[", b"]"),
        "something behind it": around(b"", b"x"),
        "a comma behind it": around(b"", b","),
        "a NUL behind it": around(b"", b"\0"),
        "no UTF-8": lambda content: render(content).replace(b'"curse"', b'"cur\xff"'),
        "a control character": lambda content: render(content).replace(b'"curse"', b'"cur\nse"'),
        "plain text": lambda _content: b"hello",
        "a number": lambda _content: b"7",
        "a null": lambda _content: b"null",
    }
    return [Poison(name, Reason.MALFORMED, make) for name, make in wrong.items()]


def _without(render: Callable[[Content], bytes], *, name: str) -> Make:
    def make(content: Content) -> bytes:
        record = json.loads(render(content))
        del record[name]
        return _json(record)

    return make


EMPTY = [Poison("no value", Reason.EMPTY, lambda _: None), Poison("an empty value", Reason.EMPTY, lambda _: b"")]
JSON = Form(
    "json",
    {"format": "json", "features": FEATURES, "label": LABEL},
    _json,
    [
        *EMPTY,
        *_texts(_json),
        *_values(_json),
        Poison("no label", Reason.MISSING, _without(_json, name="y")),
        Poison("a null", Reason.MISSING, lambda content: _json({**content, "curse": None})),
        Poison("no x", Reason.WRONG_SHAPE, lambda content: _json({**content, "x": []})),
        Poison("a number for a list", Reason.WRONG_SHAPE, lambda content: _json({**content, "x": 1.0})),
        Poison("a fraction for a whole number", Reason.WRONG_TYPE, lambda content: _json({**content, "id": 1.5})),
    ],
)
NESTED = Form(
    "nested json",
    {
        "format": "json",
        "features": {
            "x": {"dtype": "float32", "shape": [WIDTH], "field": "points[].x"},
            "curse": "float32",
            "id": {"dtype": "int64", "field": "about.id"},
            "partition": {"dtype": "int32", "field": "about.who.partition"},
        },
        "label": LABEL,
    },
    _nested,
    [
        *EMPTY,
        *_texts(_nested),
        *_values(_nested),
        Poison("no label", Reason.MISSING, _without(_nested, name="y")),
        Poison("no parent", Reason.MISSING, _without(_nested, name="about")),
        Poison("no list", Reason.MISSING, _without(_nested, name="points")),
        Poison(
            "a null parent", Reason.MISSING, lambda content: _nested(content).replace(b'{"partition"', b'null,"a":{"b"')
        ),
        Poison(
            "a number for a parent",
            Reason.WRONG_TYPE,
            lambda content: _json({**json.loads(_nested(content)), "about": 7}),
        ),
    ],
)
CSV = Form(
    "csv",
    {
        "format": "csv",
        "csv": {"columns": ["id", "partition", "curse", "x", "y"], "lists": ";"},
        "features": FEATURES,
        "label": LABEL,
    },
    _csv,
    [
        *EMPTY,
        *_values(_csv),
        Poison("too few columns", Reason.MALFORMED, lambda content: _csv(content).rpartition(b",")[0]),
        Poison("too many columns", Reason.MALFORMED, lambda content: _csv(content) + b",1"),
        Poison("two lines", Reason.MALFORMED, lambda content: _csv(content) + b"\n" + _csv(content)),
        Poison("an open quote", Reason.MALFORMED, lambda content: b'"' + _csv(content)),
        Poison("no UTF-8", Reason.MALFORMED, lambda content: _csv(content) + b"\xff"),
        Poison("an empty column", Reason.MISSING, lambda content: _csv({**content, "curse": ""})),
        Poison("no x", Reason.MISSING, lambda content: _csv({**content, "x": []})),
        Poison("an empty label", Reason.MISSING, lambda content: _csv({**content, "y": ""})),
        Poison("a fraction for a whole number", Reason.WRONG_TYPE, lambda content: _csv({**content, "id": 1.5})),
        Poison("plain text", Reason.MALFORMED, lambda _content: b"hello"),
        Poison("a text in a list", Reason.WRONG_TYPE, lambda content: _csv({**content, "x": [0, "a", 0, 0]})),
    ],
)
RAW_FORM = Form(
    "raw",
    {"format": "raw", "features": FEATURES, "label": LABEL},
    _raw,
    [
        *EMPTY,
        Poison("infinite x", Reason.NOT_FINITE, lambda content: _raw({**content, "x": [0.0, float("inf"), 0.0, 0.0]})),
        Poison(
            "x that is no number", Reason.NOT_FINITE, lambda content: _raw({**content, "x": [float("nan")] * WIDTH})
        ),
        Poison("a label that is not allowed", Reason.NOT_ALLOWED, lambda content: _raw({**content, "y": 0.5})),
        Poison("half of it", Reason.MALFORMED, lambda content: _raw(content)[:20]),
        Poison("a byte too few", Reason.MALFORMED, lambda content: _raw(content)[:-1]),
        Poison("a byte too many", Reason.MALFORMED, lambda content: _raw(content) + b"\0"),
        Poison("two of them", Reason.MALFORMED, lambda content: _raw(content) * 2),
    ],
)
EXAMPLE = Form(
    "example",
    {"format": "example", "features": FEATURES, "label": LABEL},
    _example,
    [
        *EMPTY,
        *_values(_example),
        Poison("half of it", Reason.MALFORMED, lambda content: _example(content)[: len(_example(content)) // 2]),
        Poison("without its end", Reason.MALFORMED, lambda content: _example(content)[:-1]),
        Poison("plain text", Reason.MALFORMED, lambda _content: b"hello"),
        Poison("an object of JSON", Reason.MALFORMED, _json),
        Poison("no x", Reason.MISSING, lambda content: _example({**content, "x": []})),
        Poison("no label", Reason.MISSING, lambda content: _example({**content, "y": []})),
        Poison("a fraction for a whole number", Reason.WRONG_TYPE, lambda content: _example({**content, "id": 1.5})),
        Poison("two numbers for one", Reason.WRONG_SHAPE, lambda content: _example({**content, "curse": [0.0, 1.0]})),
    ],
)
AVRO_SCHEMA = {
    "type": "record",
    "name": "Record",
    "fields": [
        {"name": "note", "type": "string"},
        {"name": "who", "type": {"type": "record", "name": "Who", "fields": [{"name": "partition", "type": "long"}]}},
        {"name": "id", "type": ["null", "long", "string"]},
        {"name": "curse", "type": ["null", "double"]},
        {"name": "known", "type": "boolean"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
        {"name": "x", "type": {"type": "array", "items": "float"}},
        {"name": "y", "type": ["null", "float"]},
    ],
}
_parsed = fastavro.parse_schema(AVRO_SCHEMA)
_NOTE = "a note"


def _avro(content: Mapping[str, Any], note: str = _NOTE) -> bytes:
    who = {"partition": content["partition"]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed, {**content, "who": who, "note": note, "known": True, "kind": "b"})
    return out.getvalue()


AVRO = Form(
    "avro",
    {
        "format": "avro",
        "avro": {"schema_file": "./record.avsc"},
        "features": {
            **FEATURES,
            "partition": {"dtype": "int32", "field": "who.partition"},
            "id": {"dtype": "int64", "field": "id"},
        },
        "label": LABEL,
    },
    _avro,
    [
        *EMPTY,
        *_values(_avro),
        Poison("no x", Reason.WRONG_SHAPE, lambda content: _avro({**content, "x": []})),
        Poison("half of it", Reason.MALFORMED, lambda content: _avro(content)[: len(_avro(content)) // 2]),
        Poison("a byte too few", Reason.MALFORMED, lambda content: _avro(content)[:-1]),
        Poison("a byte too many", Reason.MALFORMED, lambda content: _avro(content) + b"\0"),
        Poison("two of them", Reason.MALFORMED, lambda content: _avro(content) * 2),
        Poison("the first byte", Reason.MALFORMED, lambda content: _avro(content)[:1]),
        Poison("an object of JSON", Reason.MALFORMED, _json),
        Poison("a length below zero", Reason.MALFORMED, lambda content: b"\x01" + _avro(content)[1:]),
        Poison("a length beyond it", Reason.MALFORMED, lambda content: b"\xfe\x7f" + _avro(content)[1:]),
        Poison("an endless number", Reason.MALFORMED, lambda content: b"\xff" * 11 + _avro(content)[1:]),
        Poison(
            "a branch that there is not",
            Reason.MALFORMED,
            lambda content: _avro({**content, "partition": 0}).replace(b"note\0\2", b"note\0\x0e"),
        ),
        Poison("a null", Reason.MISSING, lambda content: _avro({**content, "curse": None})),
        Poison("no label", Reason.MISSING, lambda content: _avro({**content, "y": None})),
    ],
    {"record.avsc": json.dumps(AVRO_SCHEMA)},
)
PROTO = """
syntax = "proto3";
message Who { int64 partition = 1; }
message Record {
  string note = 1; Who who = 2; optional int64 id = 3; optional double curse = 4; repeated float x = 5;
  optional float y = 6;
}
"""


@cache
def _message() -> Any:
    return GetMessageClass(message_of(compiled_texts({"record.proto": PROTO}, "record.proto", "the harness"), "Record"))


def _protobuf(content: Mapping[str, Any], **but: Any) -> bytes:
    whole = {"note": _NOTE, **content, "who": {"partition": content["partition"]}, **but}
    fields = _message().DESCRIPTOR.fields_by_name
    kept = {name: value for name, value in whole.items() if name in fields and value is not None}
    written: bytes = _message()(**kept).SerializeToString()
    return written


PROTOBUF = Form(
    "protobuf",
    {
        "format": "protobuf",
        "protobuf": {"descriptor": "./record.proto", "message": "Record"},
        "features": {**FEATURES, "partition": {"dtype": "int32", "field": "who.partition"}},
        "label": LABEL,
    },
    _protobuf,
    [
        *EMPTY,
        *_values(_protobuf, texts=False),
        Poison("no x", Reason.MISSING, lambda content: _protobuf(content, x=[])),
        Poison("no curse", Reason.MISSING, lambda content: _protobuf(content, curse=None)),
        Poison("no label", Reason.MISSING, lambda content: _protobuf(content, y=None)),
        Poison("no parent", Reason.MISSING, lambda content: _protobuf(content, who=None)),
        Poison("two of them", Reason.WRONG_SHAPE, lambda content: _protobuf(content) * 2),
        Poison("a byte too few", Reason.MALFORMED, lambda content: _protobuf(content)[:-1]),
        Poison("a byte too many", Reason.MALFORMED, lambda content: _protobuf(content) + b"\0"),
        Poison("the first byte", Reason.MALFORMED, lambda content: _protobuf(content)[:1]),
        Poison("an object of JSON", Reason.MALFORMED, _json),
        Poison("plain text", Reason.MALFORMED, lambda _content: b"hello"),
        Poison("a length beyond it", Reason.MALFORMED, lambda content: b"\x0a\x7f" + _protobuf(content)),
        Poison("an endless number", Reason.MALFORMED, lambda content: b"\x18" + b"\xff" * 11 + _protobuf(content)),
        Poison("groups without an end", Reason.MALFORMED, lambda _content: b"\x0b" * 200_000),
    ],
    {"record.proto": PROTO},
)
FORMS: Mapping[str, Form] = {form.name: form for form in (JSON, NESTED, CSV, RAW_FORM, EXAMPLE, AVRO, PROTOBUF)}
