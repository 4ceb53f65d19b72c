"""The verdicts on nested JSON, as data: what the tests ask for and `docs/verdicts.md` prints."""

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.formats.decoder_conformance import Case, Conformance, Outcome

NESTED_SCHEMA = Schema(
    features=(
        Field(name="age", source="user.age", dtype="uint8", min=1),
        Field(name="lat", source="user.geo.lat", dtype="float32", missing=-1.0),
        Field(name="name", source="user.name", dtype="string", missing="-"),
        Field(name="price", source="items[].price", dtype="float32", shape=(2,), missing=0.0),
        Field(name="words", source="items[].words", dtype="string", shape=(2, 1), pad=""),
        Field(name="grid", source="grid[][].x", dtype="int64", shape=(1, 2), missing=0),
        Field(name="dotted", source=r"user\.age", dtype="int64", missing=0),
        Field(name="tags", source="more.tags[]", dtype="string", shape=(2,), pad="", missing="none"),
    ),
    labels=(Field(name="clicks", source="counts.clicks", dtype="int64", missing=0),),
)
_DEFAULTS: dict[str, object] = {
    "user.age": 30,
    "user.geo.lat": -1.0,
    "user.name": b"-",
    "items[].price": [0.0, 0.0],
    "items[].words": [[b""], [b""]],
    "grid[][].x": [[0, 0]],
    r"user\.age": 0,
    "more.tags[]": [b"none", b""],
    "counts.clicks": 0,
}


def _with(**values: object) -> Outcome:
    by_name = {field.name: field.source for field in NESTED_SCHEMA.fields}
    return {**_DEFAULTS, **{by_name[name]: value for name, value in values.items()}}


def _user(inside: str, **more: str) -> bytes:
    members = {"user": "{" + inside + "}", **_ITEMS, **more}
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in members.items()) + "}").encode()


def _also(**more: str) -> bytes:
    return _user('"age": 30', **more)


_ITEMS = {"items": "[]"}
_NO_ITEMS = (Reason.WRONG_SHAPE, "items[].price")
_TWO = '[{"price": 1, "words": ["a"]}, {"words": ["b"], "price": 2.5}]'
_LARGE = '{"price": 1e400, "words": ["a"]}'

NESTED_CASES = (
    Case("a list of no records, of a fixed shape", _also(), _NO_ITEMS),
    Case(
        "records in a list",
        _also(items=_TWO),
        _with(price=[1.0, 2.5], words=[[b"a"], [b"b"]]),
    ),
    Case(
        "a record in a record",
        _user('"age": 1, "geo": {"lat": 1.5}, "name": "b"', items=_TWO),
        _with(age=1, lat=1.5, name=b"b", price=[1.0, 2.5], words=[[b"a"], [b"b"]]),
    ),
    Case("no record around a field", b'{"items": []}', (Reason.MISSING, "user.age")),
    Case("null for the record around it", b'{"user": null}', (Reason.MISSING, "user.age")),
    Case("a record that lacks it", b'{"user": {"name": "b"}}', (Reason.MISSING, "user.age")),
    Case("null for a list of records that is padded", _also(items="null"), (Reason.MISSING, "items[].words")),
    Case(
        "no key of a map, and the records around `missing` ones null",
        _user('"age": 30, "geo": null', items=_TWO, counts='{"views": 3}', more="null", grid="null"),
        _with(price=[1.0, 2.5], words=[[b"a"], [b"b"]]),
    ),
    Case(
        "a key of a map, and a list in a record",
        _also(items=_TWO, counts='{"views": 3, "clicks": 4}', more='{"tags": ["a", "b", "c"]}'),
        _with(price=[1.0, 2.5], words=[[b"a"], [b"b"]], clicks=4, tags=[b"a", b"b"]),
    ),
    Case(
        "records in lists in a list",
        _also(items=_TWO, grid='[[{"x": 1}, {"x": -2}]]'),
        _with(price=[1.0, 2.5], words=[[b"a"], [b"b"]], grid=[[1, -2]]),
    ),
    Case("a name with a dot", b'{"user.age": 4, "user": {}}', (Reason.MISSING, "user.age")),
    Case(
        "a name with a dot, a path beside it",
        _also(**{"items": _TWO, "user.age": "4"}),
        _with(price=[1.0, 2.5], words=[[b"a"], [b"b"]], dotted=4),
    ),
    Case(
        "a record of the list that lacks it",
        _also(items='[{"price": 1, "words": ["a"]}, {"words": ["a"]}]'),
        (Reason.MISSING, "items[].price"),
    ),
    Case(
        "null for a record of the list",
        _also(items='[{"price": 1, "words": ["a"]}, null]'),
        (Reason.MISSING, "items[].price"),
    ),
    Case("null for a list of the list", _also(items=_TWO, grid="[null]"), (Reason.MISSING, "grid[][].x")),
    Case("too many records in the list", _also(items=_TWO[:-1] + ", {}]"), _NO_ITEMS),
    Case("a list for a record", b'{"user": [{"age": 30}]}', (Reason.WRONG_SHAPE, "user.age")),
    Case("a record for a list of records", _also(items='{"price": 1}'), _NO_ITEMS),
    Case("a list in a list for a list of records", _also(items="[[]]"), _NO_ITEMS),
    Case("text for a record", b'{"user": "30"}', (Reason.WRONG_TYPE, "user.age")),
    Case("text for a record in a record", _user('"age": 30, "geo": ""'), (Reason.WRONG_TYPE, "user.geo.lat")),
    Case("a number for a list of records", _also(items="1"), (Reason.WRONG_TYPE, "items[].price")),
    Case("a number for a record of a list", _also(items="[1]"), (Reason.WRONG_TYPE, "items[].price")),
    Case("a record for a value in a record", _user('"age": {}'), (Reason.WRONG_TYPE, "user.age")),
    Case("text for a number in a record", _user('"age": "30"'), (Reason.WRONG_TYPE, "user.age")),
    Case(
        "text for a number in a list of records", _also(items='[{"price": ""}]'), (Reason.WRONG_TYPE, "items[].price")
    ),
    Case(
        "two fields at fault: the schema's first",
        b'{"counts": 1, "user": {"age": 1.5}}',
        (Reason.WRONG_TYPE, "user.age"),
    ),
    Case("a field twice in a record", _user('"age": 30, "age": 31'), (Reason.MALFORMED, "user.age")),
    Case("a record twice", b'{"user": {"age": 30}, "user": {}}', (Reason.MALFORMED, "user.age")),
    Case(
        "a field twice in a record of a list",
        _also(items='[{"price": 1, "price": 2}]'),
        (Reason.MALFORMED, "items[].price"),
    ),
    Case(
        "another field of a record, twice and of any type",
        _user('"age": 30, "x": {"age": [NaN]}, "x": null', items=_TWO),
        _with(price=[1.0, 2.5], words=[[b"a"], [b"b"]]),
    ),
    Case(
        "a number beyond float64 in another field of a record",
        _user('"age": 30, "x": [1e400]', items=_TWO),
        _with(price=[1.0, 2.5], words=[[b"a"], [b"b"]]),
    ),
    Case(
        "a number beyond float64 in a list of records",
        _also(items=f"[{_LARGE}, {_LARGE}]"),
        (Reason.OUT_OF_RANGE, "items[].price"),
    ),
    Case(
        "a number beyond float32 in a record",
        _user('"age": 30, "geo": {"lat": 1e39}', items=_TWO),
        (Reason.OUT_OF_RANGE, "user.geo.lat"),
    ),
    Case("an integer of a record beyond int64", _user('"age": 9223372036854775808'), (Reason.OUT_OF_RANGE, "user.age")),
    Case("a number below its `min` in a record", _user('"age": 0', items=_TWO), (Reason.OUT_OF_RANGE, "user.age")),
    Case("NaN in a record", _user('"age": 30, "geo": {"lat": NaN}', items=_TWO), (Reason.NOT_FINITE, "user.geo.lat")),
    Case("half a record", b'{"user": {"age": 30}, "items": [{"price": 1}', (Reason.MALFORMED, None)),
)

NESTED = Conformance(name="json with nested records", decoder=make_decoder("json", NESTED_SCHEMA), cases=NESTED_CASES)
