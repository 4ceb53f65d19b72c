"""Made-up rows keep to the rules of their fields, as records will."""

import numpy as np
import pytest

from millrace.pipelines.schema import Field, Schema
from millrace.training.model.probes import make_probe


@pytest.mark.parametrize(
    "field",
    [
        Field(name="x", source="x", dtype="float32", min=10, max=10.5),
        Field(name="x", source="x", dtype="float32", max=-3),
        Field(name="x", source="x", dtype="float32", min=1_000_000),
        Field(name="x", source="x", dtype="int16", min=18, max=120, shape=(2,)),
        Field(name="x", source="x", dtype="uint8", min=200, max=200),
        Field(name="x", source="x", dtype="int8", one_of=(-1, 5)),
    ],
)
def test_made_up_rows_keep_to_the_fields_rules(field: Field) -> None:
    probe = make_probe(Schema(features=(field,), labels=(field,)), 64)
    for column in (probe.features["x"], probe.labels["x"]):
        assert column.shape == (64, *field.shape)
        assert column.dtype == field.numpy_dtype
        made_up: list[float] = column.ravel().tolist()
        assert field.min is None or min(made_up) >= field.min
        assert field.max is None or max(made_up) <= field.max
        assert field.one_of is None or set(made_up) == set(field.one_of)
        assert field.min == field.max is not None or len(np.unique(column)) > 1


def test_made_up_texts_are_those_that_are_listed() -> None:
    field = Field(name="x", source="x", dtype="string", one_of=("DE", "NO"))
    probe = make_probe(Schema(features=(field,)), 64)
    assert set(probe.features["x"].tolist()) == {b"DE", b"NO"}
