"""Compiled code for JSON: it gives what pyarrow's parser gives, to the bit, and takes what is usual."""

import json
import math
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.pipelines.formats.json.decoder import JsonDecoder
from millrace.pipelines.formats.shared.plain_rows import PlainReader, compiled
from millrace.pipelines.schema import DType, Field, Schema
from tests.pipelines.formats.compiled import assert_alike, without_compiled
from tests.pipelines.formats.decoder_conformance import Conformance, mutated, outcomes, same
from tests.pipelines.formats.verdicts import SUBJECTS

JSONS = [subject for subject in SUBJECTS if subject.name.startswith("json")]
NUMBER = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
MISSING: dict[DType, str | float] = {
    "float32": 0,
    "float64": 0,
    "int64": 0,
    "bool": False,
    "string": "a",
    "uint8": 9,
    "float16": 0,
}
WIDE = Schema(
    features=(
        *(Field(name=dtype, source=dtype, dtype=dtype, missing=missing) for dtype, missing in MISSING.items()),
        Field(name="many", source="many", dtype="float32", shape=(3,), pad=0),
        Field(name="age", source="user.age", dtype="float64", missing=0),
        Field(name="tag", source="user.tag", dtype="string", missing="none"),
        Field(name="prices", source="items[].price", dtype="float32", shape=(2,), pad=0),
        Field(name="marks", source="items[].marks[]", dtype="int64", shape=(2, 1)),
    )
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
)
ANY = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
ITEM = st.fixed_dictionaries(
    {"price": st.floats(width=32), "marks": st.lists(st.integers(0, 9), min_size=1, max_size=1)}, optional={"x": ANY}
)
FIELDS: dict[str, st.SearchStrategy[object]] = {
    **dict.fromkeys(MISSING, LEAVES),
    "float32": st.floats(),
    "float64": st.floats(),
    "int64": st.integers(-(2**64), 2**64),
    "string": st.text(max_size=9),
    "many": st.lists(st.floats(width=32), max_size=4),
    "user": st.fixed_dictionaries({}, optional={"age": st.floats(), "tag": st.text(), "x": ANY}),
    "items": st.lists(ITEM, min_size=1, max_size=3),
    "other": ANY,
}
OBJECT = st.fixed_dictionaries({}, optional=FIELDS)
RECORD = st.builds(
    lambda record, indent, ascii_only: json.dumps(record, indent=indent, ensure_ascii=ascii_only).encode(),
    OBJECT,
    st.sampled_from([None, None, 0, 1]),
    st.booleans(),
)


def test_the_code_is_compiled_here() -> None:
    assert compiled()


@settings(max_examples=60)
@given(st.lists(st.one_of(RECORD, RECORD.flatmap(lambda record: mutated([record]))), min_size=1, max_size=6))
@example([b'{"string": "\\ud83d\\ude00", "user": null, "items": null}', b'{"string": "\\udc00"}'])
@example(
    [b'{"int64": 1, "int64": 2}', b'{"user": {"age": 1, "age": 2}}', b'{"items": [{"price": 1, "price": 2}]}', b"{}"]
)
@example(
    [b'{"float64": 0e5801}', b'{"other": 0e5801}', b'{"other": 1e400}', b'{"float32": 0e300}', b'{"other": 0e-5801}']
)
@example([b'{"int64": -0, "float32": -0, "float64": -0.0e5}', b'{"float32": 1.17549421e-38, "float64": 5e-324}'])
def test_every_record_has_the_outcome_that_it_has_by_the_parser(values: list[bytes]) -> None:
    assert_alike(JsonDecoder(WIDE), [*values])


@pytest.mark.parametrize("subject", JSONS, ids=lambda subject: subject.name)
def test_every_verdict_is_the_same_without_the_code(subject: Conformance) -> None:
    found = outcomes(without_compiled(subject.decoder), subject.values)
    assert all(same(here, case.outcome) for here, case in zip(found, subject.cases, strict=True))


JUDGED = (
    Field(name="float", source="float", dtype="float32", min=-1, max=0.1),
    Field(name="double", source="double", dtype="float64", one_of=(0, 0.1, -2)),
    Field(name="small", source="small", dtype="int8", missing=-3, min=-100),
    Field(name="large", source="large", dtype="uint32", max=2**32 - 2),
    Field(name="whole", source="whole", dtype="int64", one_of=(1, 2**53 + 1, 2**63 - 1)),
    Field(name="yes", source="yes", dtype="bool"),
    Field(name="three", source="three", dtype="float32", shape=(3,), max=2),
    Field(name="four", source="four", dtype="int16", shape=(2, 2), missing=0),
    Field(name="some", source="some", dtype="float64", shape=(2,), pad=0, min=0),
    Field(name="age", source="user.age", dtype="float32"),
    Field(name="text", source="text", dtype="string"),
)
UNKNOWN = (
    Field(name="half", source="half", dtype="float16"),
    Field(name="word", source="word", dtype="string", one_of=("a", "b")),
    Field(name="prices", source="items[].price", dtype="float32", shape=(2,)),
)
RULES = [
    JsonDecoder(Schema(features=fields))
    for fields in (
        JUDGED,
        JUDGED[::-1],
        (*JUDGED[:6], UNKNOWN[1], *JUDGED[6:], *UNKNOWN[::2]),
        (UNKNOWN[2], *JUDGED, *UNKNOWN[:2]),
    )
]
REALS = ["0", "0.1", "-1", "-1.0000001", "0.10000001", "0.1000000015", "-2", "2", "2.5", "1e39", "1e-60"]
REAL = st.sampled_from([*REALS, "NaN", "Infinity", "-Infinity", "null"])
WHOLES = [1, 0, -100, -101, 127, 128, -128, -129, 2**15, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63]
INTEGER = st.sampled_from([*map(str, WHOLES), "-0", "null", "1.0"])


def listing(element: st.SearchStrategy[str], usual: int) -> st.SearchStrategy[str]:
    several = st.integers(0, 9).flatmap(
        lambda at: st.lists(element, min_size=min(at, usual), max_size=usual + (at == 9))
    )
    return st.one_of(several.map(lambda texts: f"[{','.join(texts)}]"), st.just("null"))


USUAL = {
    "float": "0.1", "double": "-2", "small": "-100", "large": "1", "whole": "9007199254740993", "yes": "true",
    "three": "[2,0.5,-7e3]", "four": "[[1,-2],[3,4]]", "some": "[0,1.5,3]", "user": '{"age":31}', "text": '"a"',
    "half": "0.5", "word": '"b"', "items": '[{"price":1},{"price":2}]',
}  # fmt: skip
ANYTHING = [
    "1",
    "-2.5",
    "1e2",
    "NaN",
    "-Infinity",
    "1e999",
    '"x"',
    '"\\u0041"',
    "true",
    "fals",
    "[1]",
    "[[1.5]]",
    '["a"]',
]
ANYTHING += [
    "[]",
    "[null,true]",
    "{}",
    '{"a":[1]}',
    '{"age":"x"}',
    '{"age":[1]}',
    "[1,",
    "9223372036854775808",
    "-",
    "01",
]
UNUSUAL = {
    "float": REAL, "double": REAL, "small": INTEGER, "large": INTEGER, "whole": INTEGER, "three": listing(REAL, 3),
    "yes": st.sampled_from(["null", "false"]), "four": listing(listing(INTEGER, 2), 2), "some": listing(REAL, 2),
    "user": st.sampled_from(["null", "{}", '{"age":null}', '{"age":NaN}']), "text": st.sampled_from(["null", '""']),
    "half": REAL, "word": st.sampled_from(['"c"', "null", '"a"']),
    "items": listing(st.sampled_from(['{"price":1}', '{"price":null}', '{"price":NaN}', "null", "{}"]), 2),
}  # fmt: skip


def a_record(**texts: str) -> bytes:
    """Return a record of which all other fields are usual."""
    return ("{" + ",".join(f'"{name}":{text}' for name, text in {**USUAL, **texts}.items()) + "}").encode()


@st.composite
def judged(draw: st.DrawFn) -> bytes:
    """Draw a record of which some fields are unusual, or not there at all."""
    texts = dict(USUAL)
    for name in draw(st.lists(st.sampled_from([*USUAL]), max_size=4)):
        other = st.one_of(st.sampled_from(ANYTHING), listing(st.sampled_from(ANYTHING), 2))
        texts[name] = draw(other if draw(st.integers(0, 2)) == 0 else UNUSUAL[name])
    for name in draw(st.lists(st.sampled_from([*USUAL]), max_size=2)) if draw(st.integers(0, 3)) == 0 else []:
        texts.pop(name, None)
    return ("{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}").encode()


@pytest.mark.parametrize("decoder", RULES)
@settings(max_examples=150)
@given(values=st.lists(judged(), min_size=1, max_size=6))
@example(values=[a_record(float="NaN", double="7"), a_record(three="[null,3]"), a_record(four="[[null]]")])
@example(values=[a_record(word='"c"', three="[1]"), a_record(word='"c"', text="null"), a_record(half="1e5", age="7")])
def test_every_record_is_judged_as_by_its_columns(decoder: JsonDecoder, values: list[bytes]) -> None:
    assert_alike(decoder, [*values])


def test_what_the_code_judges_leaves_columns_without_a_fault() -> None:
    good = a_record()
    faults = {
        '"float":0.1': '"float":0.11', '"double":-2': '"double":-3', '"small":-100': '"small":-101',
        '"whole":9007199254740993': '"whole":9007199254740992', '"yes":true': '"yes":null',
        "[2,0.5,-7e3]": "[2,0.5]", "[[1,-2],[3,4]]": "[[1],[3,4]]", "[0,1.5,3]": "[0,-1]", '{"age":31}': "{}",
        '"text":"a"': '"text":null', "0.5,-7e3": "NaN,-7e3",
    }  # fmt: skip
    records = [good.replace(usual.encode(), fault.encode()) for usual, fault in faults.items()]
    assert good not in records
    plain = RULES[0]._plain
    assert plain is not None
    found = plain.of([good, *records])
    assert found is not None
    assert found.indices.tolist() == [0]
    assert [one.index for one in found.refused] == [*range(1, 1 + len(records))]


def plain_of(arrow: pa.DataType, texts: list[str]) -> tuple[list[bool], pa.Array]:
    """Return which of some values of a field are plain, and what was read of these."""
    records = [b'{"v":%s}' % text.encode() for text in texts]
    read = PlainReader("read_json", pa.schema([("v", arrow)]), b",[", ()).of(records)
    assert read is not None
    plain = np.isin(np.arange(len(records)), read.indices).tolist()
    return plain, read.table.column("v").combine_chunks()


def assert_numbers(texts: list[str]) -> None:
    """Assert that each number is rounded as Python and numpy round it, or is left to the parser."""
    plain, doubles = plain_of(pa.float64(), texts)
    said = np.array([float(text) for text, is_plain in zip(texts, plain, strict=True) if is_plain])
    assert doubles.to_numpy().tobytes() == said.tobytes()
    plain, floats = plain_of(pa.float32(), texts)
    kept = [text for text, is_plain in zip(texts, plain, strict=True) if is_plain]
    # Arrow rounds once, from the text; by way of a double a number may be rounded twice.
    assert floats.to_numpy().tobytes() == pa.array(kept, pa.string()).cast(pa.float32()).to_numpy().tobytes()


@settings(max_examples=150)
@given(st.lists(NUMBER, min_size=1, max_size=9))
def test_numbers_are_rounded_as_everywhere(texts: list[str]) -> None:
    assert_numbers([text for text in texts if math.isfinite(float(text))] or ["0"])


def test_numbers_beside_the_middle_of_two_floats_are_rounded_right() -> None:
    random, texts = Random(1), list[str]()
    for _ in range(20_000):
        low = np.uint32(random.randrange(1 << 23, 0x7F000000)).view(np.float32)
        middle = (float(low) + float(np.nextafter(low, np.float32(np.inf)))) / 2
        texts += [f"{middle:.18e}", f"{middle:.16e}", repr(middle), repr(float(low))]
        double = np.uint64(random.randrange(1 << 52, 0x7FE0 << 48)).view(np.float64)
        texts += [repr(float(double)), f"{float(double):.18e}"]
    assert_numbers(texts)


def test_whole_numbers_are_taken_to_the_ends_of_int64() -> None:
    ends = ["9223372036854775807", "-9223372036854775807", "9223372036854775808", "1.0", "1e2", "-0", "00", "-"]
    plain, read = plain_of(pa.int64(), ends)
    assert plain == [True, True, False, False, False, True, False, False]
    assert read.to_pylist() == [2**63 - 1, -(2**63) + 1, 0]


@pytest.mark.parametrize(
    "record",
    [
        {
            "float32": 0.1234567890123456,
            "float64": 1e-9,
            "int64": -5,
            "bool": True,
            "string": 'a "b" \n ü €',
            "uint8": 9,
        },
        {"user": {"age": 1, "tag": None}, "items": [{"price": 0.5, "marks": [1]}], "many": [1, 2.5e3]},
        {"user": None, "items": None, "many": [], "other": [{"a": [1e99, {"b": "\\"}]}, None, False]},
        {},
    ],
)
@pytest.mark.parametrize("form", [{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_what_is_usual_is_plain(record: dict[str, object], form: dict[str, object]) -> None:
    decoder = JsonDecoder(WIDE)
    records = [json.dumps(record, **form).encode()] * 3  # type: ignore[arg-type]
    assert decoder._plain is not None
    read = decoder._plain.of(records)
    assert read is not None
    assert read.indices.tolist() == [0, 1, 2]


def verdicts(values: list[bytes | None]) -> list[str]:
    """Return what the compiled code says of each record."""
    decoder = JsonDecoder(WIDE)
    assert decoder._plain is not None
    read = decoder._plain.of(values)
    assert read is not None
    said = dict.fromkeys(read.indices.tolist(), "plain") | dict.fromkeys(read.left.tolist(), "left")
    said |= {refusal.index: str(refusal.reason) for refusal in read.refused}
    return [said[at] for at in range(len(values))]


def test_what_no_parser_takes_is_refused_at_once_and_what_is_not_certain_is_left() -> None:
    said: dict[str, list[bytes | None]] = {
        "plain": [b"{}", b' {"int64": 1}\t', '{"string": "ü€🙂"}'.encode(), b'{"other": [{}]}'],
        "empty": [None, b"", b" \r\n\t"],
        "malformed": [
            b"7",
            b"null",
            b"[{}]",
            b'{"int64": 1',
            b'{"int64": 1}}',
            b'{"int64": 1} {"int64": 1}',
            b"{}\0",
            b'{"int\n64": 1}',
            b'{"string": "a\x01"}',
            b'{"string": "a}',
            b'{"string": "\xff"}',
            b'{"other": "\xed\xa0\x80"}',
        ],
        "wrong_type": [b'{"int64": 1.0}', b'{"float32": "1"}', b'{"string": 1e5}', b'{"bool": {}, "int64": null}'],
        "wrong_shape": [b'{"int64": [1]}', b'{"float64": []}'],
        # Some of these are good, and some are not: the parser knows.
        "left": [
            b'{"int64": 1, "int64": 2}',
            b'{"int\\u0036": 1}',
            b'{"int64" 1}',
            b'{"other": NaN}',
        ],
    }
    for verdict, values in said.items():
        assert verdicts(values) == [verdict] * len(values), verdict


@given(st.lists(st.binary(max_size=12) | st.text(max_size=4).map(str.encode), max_size=40))
def test_utf8_is_what_python_takes_for_it(texts: list[bytes]) -> None:
    def readable(text: bytes) -> bool:
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        return True

    # Without what means something in a string.
    kept = [text.translate(None, b'"\\' + bytes(range(0x20))) for text in texts]
    said = verdicts([b"{}", *(b'{"string": "%s"}' % text for text in kept)])
    assert said == ["plain", *("plain" if readable(text) else "malformed" for text in kept)]


def test_keys_in_any_order_and_more_than_are_remembered_are_found() -> None:
    names = [f"f{number}" for number in range(700)]
    fields = tuple(Field(name=name, source=name, dtype="int64") for name in names[::2])
    random, records = Random(2), []
    for number in range(40):
        order = random.sample(names, len(names))
        records.append(json.dumps({name: int(name[1:]) + number for name in order}).encode())
    decoded = JsonDecoder(Schema(features=fields)).decode(records)
    assert decoded.kept.tolist() == [*range(40)]
    assert all((decoded.columns[name] == np.arange(40) + int(name[1:])).all() for name in names[::2])
