"""The columns and verdicts that every columnar format takes from Arrow arrays."""

import numpy as np
import pyarrow as pa

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.shared.arrow_columns import ColumnReader, Show
from millrace.pipelines.formats.shared.protocol import Refusal
from millrace.pipelines.schema import Field

AGE = Field(name="age", source="user.age", dtype="int8", min=0)
PRICES = Field(name="prices", source="items[].price", dtype="float32", shape=(2,), pad=-1.0)
PAIR = Field(name="pair", source="pair", dtype="float32", shape=(2,))
INDICES = np.array([3, 5, 6], np.int64)


def test_each_rows_first_fault_in_the_schemas_order_is_its_verdict() -> None:
    arrays = {
        "user.age": pa.array([1, None, -4], pa.int64()),
        "items[].price": pa.array([[1, 2, 3], [float("nan")], [None]], pa.list_(pa.float32())),
    }
    decoded = ColumnReader((AGE, PRICES)).read(arrays, INDICES)
    assert decoded.kept.tolist() == [3]
    assert decoded.columns["user.age"].tolist() == [1]
    assert decoded.columns["items[].price"].tolist() == [[1.0, 2.0]]
    assert decoded.lengths["items[].price"].tolist() == [3]
    assert decoded.refused == (
        Refusal(5, Reason.MISSING, "user.age"),
        Refusal(6, Reason.OUT_OF_RANGE, "user.age"),
    )


def test_the_faults_that_the_format_found_count_too() -> None:
    arrays = {"user.age": pa.array([1, None, 3], pa.int64())}
    found = {"user.age": np.array([0, Show.WRONG_TYPE, 0], np.uint8)}
    decoded = ColumnReader((AGE,)).read(arrays, INDICES, found=found)
    assert decoded.refused == (Refusal(5, Reason.WRONG_TYPE, "user.age"),)
    assert decoded.kept.tolist() == [3, 6]


def test_the_format_says_what_an_infinity_was() -> None:
    arrays = {"pair": pa.array([[1, 2], [float("inf"), 0], [0, 0]], pa.list_(pa.float32()))}
    asked: list[tuple[int, str]] = []

    def infinity(row: int, field: Field) -> Reason:
        asked.append((row, field.name))
        return Reason.OUT_OF_RANGE

    reader = ColumnReader((PAIR,))
    assert reader.read(arrays, INDICES, infinity).refused == (Refusal(5, Reason.OUT_OF_RANGE, "pair"),)
    assert asked == [(1, "pair")]
    assert reader.read(arrays, INDICES).refused == (Refusal(5, Reason.NOT_FINITE, "pair"),)


def test_lists_that_are_null_over_values_in_arrows_memory_are_missing_alone() -> None:
    offsets, values = pa.array([0, 2, 4, 6], pa.int32()), pa.array([1, 2, 3, 4, 5, 6], pa.float32())
    lists = pa.ListArray.from_arrays(offsets, values, mask=pa.array([False, True, False]))
    decoded = ColumnReader((PAIR,)).read({"pair": lists}, INDICES)
    assert decoded.columns["pair"].tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert decoded.refused == (Refusal(5, Reason.MISSING, "pair"),)


def test_no_rows_have_every_column() -> None:
    decoded = ColumnReader((AGE, PRICES)).no_rows()
    assert {source: (column.dtype, column.shape) for source, column in decoded.columns.items()} == {
        "user.age": (np.dtype("int8"), (0,)),
        "items[].price": (np.dtype("float32"), (0, 2)),
    }
    assert decoded.lengths["items[].price"].tolist() == []
