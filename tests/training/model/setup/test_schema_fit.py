"""Inputs that do not fit the schema are shown beside it."""

from collections.abc import Mapping
from typing import Any

import keras
import pytest

from millrace.pipelines.schema import DType, Field, Schema
from millrace.training.errors import ModelError
from tests.training.conftest import MakeLearner

pytestmark = pytest.mark.tensorflow

Shapes = Mapping[str, tuple[DType, tuple[int, ...]]]
LABEL = (Field(name="y", source="y", dtype="float32"),)


def _schema(features: Shapes) -> Schema:
    fields = (Field(name=name, source=name, dtype=dtype, shape=shape) for name, (dtype, shape) in features.items())
    return Schema(features=tuple(fields), labels=LABEL)


def _build(inputs: Shapes, *, bare: bool = False) -> Any:
    tensors = {name: keras.Input(shape, name=name, dtype=dtype) for name, (dtype, shape) in inputs.items()}
    numbers = [keras.layers.Hashing(4)(tensor) if tensor.dtype == "string" else tensor for tensor in tensors.values()]
    flat = [
        keras.layers.Flatten()(keras.ops.cast(n, "float32")) if len(n.shape) > 1 else keras.layers.Reshape((1,))(n)
        for n in numbers
    ]
    together = keras.layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
    model = keras.Model(next(iter(tensors.values())) if bare else tensors, keras.layers.Dense(1)(together))
    model.compile(optimizer="sgd", loss="mse")
    return model


def _told(learner_of: MakeLearner, inputs: Shapes, features: Shapes) -> str:
    with pytest.raises(ModelError) as told:
        learner_of(lambda: _build(inputs), schema=_schema(features))
    head, _, differences = str(told.value).partition("records.features: ")
    assert head == "the model's inputs do not fit "
    return differences


def test_names_of_one_side_alone_are_shown(learner_of: MakeLearner) -> None:
    text = _told(
        learner_of,
        {"price": ("float32", (1,)), "hour": ("float32", (1,))},
        {"price": ("float32", (1,)), "day": ("int32", ())},
    )
    assert text == (
        "day: the model wants nothing, the schema has int32; hour: the model wants float32[1], the schema has nothing"
    )


def test_shapes_that_differ_are_shown_and_those_that_fit_are_not(learner_of: MakeLearner) -> None:
    text = _told(
        learner_of,
        {"price": ("float32", (1,)), "amounts": ("float32", (16,))},
        {"price": ("float32", (1,)), "amounts": ("float32", (12,))},
    )
    assert text == "amounts: the model wants float32[16], the schema has float32[12]"


def test_text_is_no_number(learner_of: MakeLearner) -> None:
    inputs: Shapes = {"ad": ("string", (1,)), "price": ("float32", (1,))}
    features: Shapes = {"ad": ("int64", (1,)), "price": ("float32", (1,))}
    assert _told(learner_of, inputs, features) == "ad: the model wants string[1], the schema has int64[1]"


def test_a_scalar_and_a_list_of_one_are_taken_for_each_other_and_numbers_are_cast(learner_of: MakeLearner) -> None:
    inputs: Shapes = {"price": ("float32", (1,)), "hour": ("float32", ())}
    features: Shapes = {"price": ("float64", ()), "hour": ("int32", ())}
    learner_of(lambda: _build(inputs), schema=_schema(features))


def test_a_bare_input_takes_the_only_feature_whatever_its_name(learner_of: MakeLearner) -> None:
    learner_of(lambda: _build({"input": ("float32", (3,))}, bare=True), schema=_schema({"x": ("float32", (3,))}))
    with pytest.raises(ModelError, match=r"input: the model wants float32\[3\], the schema has float32\[4\]"):
        learner_of(lambda: _build({"input": ("float32", (3,))}, bare=True), schema=_schema({"x": ("float32", (4,))}))


def test_an_input_in_a_dictionary_goes_by_its_name(learner_of: MakeLearner) -> None:
    text = _told(learner_of, {"price": ("float32", (3,))}, {"x": ("float32", (3,))})
    assert text.startswith("price: the model wants float32[3], the schema has nothing")
