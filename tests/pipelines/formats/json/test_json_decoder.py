"""The JSON decoder's own: boundaries, floods, depth and size, and what keeps its shortcuts honest."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow
import pyarrow.json
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import FORMATS, make_decoder
from millrace.pipelines.formats.json.faults import JsonAsked, diagnose
from millrace.pipelines.formats.json.framing import frame
from millrace.pipelines.schema import DType, Field, Schema
from tests.pipelines.formats.decoder_conformance import alone, mutated, outcomes
from tests.pipelines.formats.verdicts import JSON

IDS = Schema(features=(Field(name="id", source="id", dtype="int64"),))
ASKED = JsonAsked(JSON.decoder.schema.fields)
RECORDS = [value for value in JSON.values if value]
MALFORMED = (Reason.MALFORMED, None)


def ids(values: Sequence[bytes | None]) -> list[object]:
    """Return the id of each record, or its verdict."""
    found = outcomes(make_decoder("json", IDS), values)
    return [outcome["id"] if isinstance(outcome, dict) else outcome for outcome in found]


def test_faults_that_cancel_in_the_count_of_rows_are_found() -> None:
    values = [b'{"id":0}{"id":100}', b"", b'{"id":2}']
    assert ids(values) == [MALFORMED, (Reason.EMPTY, None), 2]


@pytest.mark.parametrize(
    "values",
    [
        [b'{"id":0}{"id":1}', b'{"id":2', b'"a":{}}', b'{"id":3}'],
        [b'{"id":0}{"id":1}', b'{"id":2}\0{}', b'{"id":3}'],
        [b'{"id":0,"a":{"b":1}', b'{"id":1}}', b'{"id":3}'],
        [b'{"id":0,"a":[{}', b"{}]}", b'{"id":3}'],
        [b'{"id":0,"a":"}', b'{"}', b'{"id":3}'],
        [b'{"id":0}{"id":1}', b'{"id":2}\n{', b"}", b'{"id":3}'],
        [b'{"id":0}null', b'null{"id":1}', b'{"id":1}null{"id":2}', b'{"id":3}'],
        [b'{"id":0}{}{}', b"{", b"}", b'{"id":3}'],
    ],
)
def test_records_that_only_together_make_as_many_objects_are_each_refused(values: list[bytes | None]) -> None:
    *broken, last = ids(values)
    assert last == 3
    assert broken == [MALFORMED] * len(broken)


FEW = [
    b"{}",
    b'{"id":"1"}',
    b'{"id": "1"}',
    b'{"id":1.5}',
    b'{"id":-1e3}',
    b'{"id":123456789012345678901}',
    b'{"id":[1]}',
    b'{"id":1}{"id":2}',
    b'{"id":1,"a":"b\xff"}',
    b'{"id":1,"a":"\t"}',
]


def test_the_records_that_are_plain_are_not_parsed_again_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [b'{"id":%d,"a":"b"}' % (number**7) for number in range(50 * len(FEW))]
    read, rows = pyarrow.json.read_json, list[int]()

    def counted(source: pyarrow.BufferReader, **options: Any) -> pyarrow.Table:
        rows.append(source.read().count(b"\n"))
        source.seek(0)
        return read(source, **options)

    monkeypatch.setattr(pyarrow.json, "read_json", counted)
    few = [value for value in FEW if value.isascii()]
    found = ids([*good, *few])
    assert found[: len(good)] == [number**7 for number in range(len(good))]
    assert all(isinstance(verdict, tuple) for verdict in found[len(good) :])
    assert max(rows, default=0) < len(FEW)  # "{}" is plain, and shows in the columns


@settings(max_examples=100)
@given(st.lists(st.one_of(st.sampled_from(RECORDS), mutated(RECORDS)), max_size=8))
def test_a_kept_row_holds_what_its_own_record_says(values: list[bytes]) -> None:
    for value, outcome in zip(values, outcomes(JSON.decoder, list(values)), strict=True):
        if not isinstance(outcome, dict) or b"Inf" in value or b"NaN" in value:
            continue
        said = json.loads(value)
        assert outcome["price"] == float(np.float32(said["price"])) or abs(said["price"]) > 1e30
        assert outcome["big"] == (said["big"] if said.get("big") is not None else 0)
        assert outcome["ad"] == (said["ad"] if said.get("ad") is not None else "none").encode()


@settings(max_examples=200)
@given(mutated(RECORDS))
@example(b'{"price": -NaN}')
@example(b'{"price": Inf, "big": 1.0}')
@example(b'{"price": 1, "ad": "\xc0\x80"}')
@example(b'{"price": 1, "ad": "\x7f\xc2\x80"}')
@example(b'{"price": 1, "other": "\\ud800\\u0041"}')
@example(b'{"price": 1, "other": ' + b"7" * 5000 + b"}")
def test_the_parser_confirms_every_diagnosis_that_is_certain(value: bytes) -> None:
    record = frame(value)
    if not isinstance(record, bytes):
        return
    fault = diagnose(record, ASKED)
    if fault.certain:
        assert alone(JSON.decoder, [record]) == [(fault.reason, fault.field)]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"id":"x"}',
        b'{"id":1.0}',
        b'{"id":1',
        b'{"id":1}{}',
        b'{"id":1e400}',
        b'{"a":"\\ud800"}',
    ],
)
@pytest.mark.parametrize("share", [0.001, 0.03, 0.5, 1.0])
def test_in_a_flood_of_bad_records_the_good_ones_are_kept(bad: bytes, share: float) -> None:
    generator = random.Random(3)
    values: list[bytes | None] = [bad if generator.random() < share else b'{"id":%d}' % index for index in range(1000)]
    verdict = alone(make_decoder("json", IDS), [bad])[0]
    assert ids(values) == [verdict if value == bad else index for index, value in enumerate(values)]


@pytest.mark.parametrize("share", [0.001, 0.03, 0.5, 1.0])
def test_a_flood_of_large_numbers_that_nobody_reads_is_kept_in_order(share: float) -> None:
    generator = random.Random(3)
    values: list[bytes | None] = [
        (b'{"id":%d,"a":1e400}' if generator.random() < share else b'{"id":%d}') % index for index in range(1000)
    ]
    assert ids(values) == [*range(1000)]
    values[500] = b'{"id":"x","a":1e400}'
    assert ids(values)[499:502] == [499, (Reason.WRONG_TYPE, "id"), 501]


def test_more_records_than_the_parser_takes_at_once_are_decoded() -> None:
    values: list[bytes | None] = [b'{"id":%d}' % index for index in range(120_000)]
    values[70_000] = b"{}" * 120_000
    found = ids(values)
    assert found.pop(70_000) == MALFORMED
    rest = [index for index in range(120_000) if index != 70_000]
    assert found == rest
    values[10] = None
    found = ids(values)
    assert found.pop(70_000) == MALFORMED
    assert found.pop(10) == (Reason.EMPTY, None)
    assert found == [index for index in rest if index != 10]


def test_no_value_beside_a_very_large_one_is_refused_alone() -> None:
    large = b'{"id":1,"a":"%s"}' % (b"x" * 400_000)
    empty = (Reason.EMPTY, None)
    assert ids([None, large, b"", large, None]) == [empty, 1, empty, 1, empty]
    assert ids([None]) == [empty]
    assert ids([None, b'{"id":1}{']) == [empty, MALFORMED]
    for short in (b":", b"::::::::::", b'{"":123}', b'{"":"x"}', b'{"":{}}', b"{:}"):
        assert ids([None, short]) == [empty, alone(make_decoder("json", IDS), [short])[0]]


def test_a_record_of_20_mb_is_decoded_or_refused_like_any_other() -> None:
    text = b'"' + b"\\n" * 10_000_000 + b'"'
    values = [b'{"id":1,"a":' + text + b"}", b'{"id":"","a":' + text + b"}", b'{"id":3,"a":' + text, b'{"id":4}']
    assert ids(list(values)) == [1, (Reason.WRONG_TYPE, "id"), MALFORMED, 4]


def test_an_unfinished_string_full_of_quotes_takes_no_square_time() -> None:
    value = b'{"id":Inf,"a":"' + b'\\"' * 1_000_000 + b"}null{}"
    assert ids([value]) == [MALFORMED]


_DEEP = """
import sys, threading
from millrace.consumers.records import Chunk, Partition
import numpy as np
from millrace.pipelines.stream.decode import DecodePool
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema

depth = int(sys.argv[1])
values = [
    b'{"id":1,"a":' + b"[" * depth + b"]" * depth + b"}",
    b'{"id":2,"a":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
    b'{"id":3,"a":' + b"[" * depth + b"}",
    b'{"id":' + b"[" * depth + b"]" * depth + b"}",
    b'{"a":' + b'{"a":' * depth + b"}",
    b'{"a":' + b"[" * depth + b"]" * depth + b',"id":""}',
    b"[" * depth + b"]" * depth,
    b'{"id":8}null' + b"[" * depth,
    b'{"id":8}null{}',
    b"null",
    b'{"id":9}',
]
count = len(values)
chunk = Chunk(
    partition=Partition("t", 0), incarnation=1, start=0, end=count, offsets=np.arange(count),
    timestamps=np.zeros(count, np.int64), keys=[None] * count, values=values, headers=[()] * count,
    nbytes=0, fetched_at=0.0,
)
threading.stack_size(256 * 1024)
pool = DecodePool(make_decoder("json", Schema(features=(Field(name="id", source="id", dtype="int64"),))), threads=1)
pool.submit(chunk)
decoded = pool.next(120)
pool.close()
assert "tensorflow" not in sys.modules
print(decoded.features["id"].tolist(), [refused.offset for refused in decoded.refused])
"""


@pytest.mark.parametrize("depth", [150, 10_000, 1_000_000])
def test_nesting_however_deep_leaves_the_process_alive(depth: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DEEP, str(depth)], check=False, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[1, 2, 9] [2, 3, 4, 5, 6, 7, 8, 9]"), done.stderr


def test_decoding_loads_no_tensorflow_and_the_face_no_pyarrow() -> None:
    code = (
        "import sys, millrace.pipelines, millrace.pipelines.formats\n"
        "assert 'pyarrow' not in sys.modules\n"
        "import millrace.pipelines.formats.json.decoder, millrace.pipelines.stream.decode\n"
        "assert 'pyarrow' in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_good_records_are_handed_on_without_a_copy() -> None:
    fields = (
        Field(name="x", source="x", dtype="float32"),
        Field(name="v", source="v", dtype="float64", shape=(1, 2)),
        Field(name="n", source="n", dtype="int64"),
    )
    decoded = make_decoder("json", Schema(features=fields)).decode([b'{"x":1,"v":[[2,3]],"n":4}'] * 9)
    assert not any(column.flags.owndata for column in decoded.columns.values())


@pytest.mark.parametrize(
    ("dtype", "missing"),
    [
        ("uint8", 256),
        ("int32", 1.5),
        ("float32", 1e39),
        ("float32", float("nan")),
        ("float64", "1"),
        ("bool", 1),
        ("int8", True),
        ("string", 1),
    ],
)
def test_a_missing_value_that_the_dtype_cannot_hold_is_a_setting_error(
    dtype: DType, missing: bool | float | str
) -> None:
    with pytest.raises(ConfigError, match="missing"):
        make_decoder("json", Schema(features=(Field(name="x", source="x", dtype=dtype, missing=missing),)))


def test_a_source_in_two_roles_is_read_once_and_must_be_read_alike() -> None:
    x = Field(name="x", source="s", dtype="float32")
    both = Schema(features=(x,), labels=(Field(name="y", source="s", dtype="float32"),))
    assert make_decoder("json", both).decode([b'{"s":1}']).columns["s"].tolist() == [1.0]
    with pytest.raises(ConfigError, match="'s' is read both as float32 and as int8"):
        make_decoder("json", Schema(features=(x,), labels=(Field(name="y", source="s", dtype="int8"),)))


def test_an_unknown_format_names_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=f"'xml' is not a format; use one of {', '.join(FORMATS)}"):
        make_decoder("xml", IDS)
