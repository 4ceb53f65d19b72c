"""The raw decoder's own: lengths that cancel, byte order, and what it cannot decode."""

import numpy as np
import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import DType, Field, Schema

FOUR = Schema(features=(Field(name="x", source="x", dtype="float32", shape=(4,)),))


def test_lengths_that_cancel_when_joined_are_refused_each() -> None:
    good = np.arange(4, dtype="<f4").tobytes()
    decoded = make_decoder("raw", FOUR).decode([good[:12], good + good[:4], good])
    assert decoded.kept.tolist() == [2]
    assert decoded.columns["x"].tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert [refusal.reason for refusal in decoded.refused] == [Reason.MALFORMED, Reason.MALFORMED]


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_every_dtype_and_shape_survives_the_way_there_and_back(dtype: DType, shape: tuple[int, ...]) -> None:
    first = Field(name="a", source="a", dtype="uint8")
    field = Field(name="x", source="x", dtype=dtype, shape=shape)
    limits = np.array([0, 1]) if dtype == "bool" else _limits(dtype)
    rows = np.resize(limits, (5, *shape)).astype(dtype)
    values = [b"\7" + row.astype(np.dtype(dtype).newbyteorder("<")).tobytes() for row in rows]
    decoded = make_decoder("raw", Schema(features=(first, field))).decode(values)
    np.testing.assert_array_equal(decoded.columns["x"], rows, strict=True)
    assert decoded.columns["a"].tolist() == [7] * 5


def _limits(dtype: DType) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    limits = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return np.array([limits.min, limits.max, 1], dtype=dtype)


def test_a_single_field_is_handed_on_without_a_copy() -> None:
    decoded = make_decoder("raw", FOUR).decode([bytes(16)] * 3)
    assert not decoded.columns["x"].flags.owndata


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (Field(name="x", source="x", dtype="string"), "write format: json"),
        (Field(name="x", source="x", dtype="int8", missing=1), "leave it out"),
        (Field(name="x", source="x", dtype="int8", shape=(0,)), "no bytes"),
    ],
)
def test_what_raw_records_cannot_hold_is_a_setting_error(field: Field, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_decoder("raw", Schema(features=(field,)))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(features=FOUR.features, weight=Field(name="weight", source="w", dtype="float32", shape=(2,))),
        Schema(features=FOUR.features, event_time=Field(name="event_time", source="t", dtype="float64")),
        Schema(features=()),
    ],
)
def test_roles_that_no_record_can_serve_are_setting_errors(schema: Schema) -> None:
    with pytest.raises(ConfigError, match=r"^records"):
        make_decoder("raw", schema)
