"""The CSV decoder's own: quotes that would reach into a neighbour, floods, and where columns are."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.formats.shared.number_texts import converted
from millrace.pipelines.formats.shared.pieces import joined
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.formats.decoder_conformance import alone, outcomes

PAIRS = Schema(
    features=(Field(name="id", source="id", dtype="int64"), Field(name="text", source="text", dtype="string"))
)
MALFORMED = (Reason.MALFORMED, None)


def ids(values: Sequence[bytes | None]) -> list[object]:
    """Return the id of each record, or its verdict."""
    found = outcomes(make_decoder("csv", PAIRS), values)
    return [outcome["id"] if isinstance(outcome, dict) else outcome for outcome in found]


def test_a_few_texts_for_numbers_do_not_have_the_chunk_read_as_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [b"seven,a", b"1.5,a", b"1e3,a", b"nan,a", b"\xc3\xa4,a", b"1,2,3"]
    good = [b"%d,nan.e" % number for number in range(50 * len(bad))]
    sizes, read = list[int](), pyarrow.csv.read_csv

    def counted(source: pyarrow.BufferReader, **options: Any) -> pyarrow.Table:
        sizes.append(source.size())
        return read(source, **options)

    monkeypatch.setattr(pyarrow.csv, "read_csv", counted)
    found = ids([*good, *bad])
    assert found[: len(good)] == list(range(len(good)))
    assert all(isinstance(verdict, tuple) for verdict in found[len(good) :])
    assert max(sizes, default=0) <= len(joined(bad))


@pytest.mark.parametrize(
    "values",
    [
        [b'1,"a', b'b"', b"3,c"],
        [b'1,"a', b'2,b"', b"3,c"],
        [b'1,"', b'","', b'"', b"3,c"],
        [b'1,"a\n2', b'2,"', b"3,c"],
        [b"1,a\n2,b", b"1", b"3,c"],
        [b"1", b"a", b"3,c"],
        [b'1,""', b'1,"""', b"3,c"],
    ],
)
def test_a_quote_that_opens_in_one_record_swallows_no_other(values: list[bytes | None]) -> None:
    *broken, last = ids(values)
    assert last == 3
    assert all(found in (1, MALFORMED) for found in broken)
    assert MALFORMED in broken


@pytest.mark.parametrize("bad", [b'1,"', b"x,a", b"1.0,a", b"1", b"99999999999999999999,a", b",a", b"1,\xff"])
@pytest.mark.parametrize("share", [0.001, 0.03, 0.5, 1.0])
def test_in_a_flood_of_bad_records_the_good_ones_are_kept(bad: bytes, share: float) -> None:
    generator = random.Random(3)
    values: list[bytes | None] = [bad if generator.random() < share else b"%d,a" % index for index in range(1000)]
    verdict = alone(make_decoder("csv", PAIRS), [bad])[0]
    assert ids(values) == [verdict if value == bad else index for index, value in enumerate(values)]


def test_the_fields_may_stand_in_any_order_among_columns_that_nobody_reads() -> None:
    layout = CsvSettings(columns=("a", "text", "b", "id"))
    decoded = make_decoder("csv", PAIRS, layout).decode([b"x,one,,1", b'"y,",two,z,2'])
    assert decoded.columns["id"].tolist() == [1, 2]
    assert decoded.columns["text"].tolist() == [b"one", b"two"]


def test_a_grid_is_read_row_by_row_from_columns_side_by_side() -> None:
    schema = Schema(features=(Field(name="x", source="x", dtype="int8", shape=(2, 3)),))
    decoded = make_decoder("csv", schema).decode([b"1,2,3,4,5,6", b"7,8,9,10,11,12"])
    np.testing.assert_array_equal(decoded.columns["x"], np.arange(1, 13, dtype=np.int8).reshape(2, 2, 3), strict=True)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (CsvSettings(columns=("id",)), "no column is named 'text'"),
        (CsvSettings(delimiter="\n"), "one ASCII character"),
        (CsvSettings(delimiter='"'), "must be different"),
    ],
)
def test_a_layout_that_cannot_be_read_is_a_setting_error(layout: CsvSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_decoder("csv", PAIRS, layout)


@pytest.mark.parametrize("arrow", [pyarrow.int64(), pyarrow.float32(), pyarrow.float64()], ids=str)
def test_few_texts_are_converted_as_many_are(arrow: pyarrow.DataType) -> None:
    words = [
        "7",
        "-7",
        "+7",
        "++7",
        " 7\t",
        "\u00a07",
        "",
        " ",
        "7.5",
        ".5",
        "5.",
        "1e3",
        "1E400",
        "-1e-400",
        "nan",
        "-Inf",
    ]
    words += ["0x10", "1_0", "\u0661", "7\n", "9223372036854775808", "-99999999999999999999", "0.1", "16777217.0000001"]
    texts = pyarrow.array([*words, None], pyarrow.string())
    few, many = converted(texts, arrow), converted(pyarrow.concat_arrays([texts] * 40), arrow)
    assert few.wrong is not None
    assert many.wrong is not None
    assert few.wrong.tolist() == many.wrong[: len(texts)].tolist()
    assert list(map(str, few.values)) == list(map(str, many.values[: len(texts)]))
