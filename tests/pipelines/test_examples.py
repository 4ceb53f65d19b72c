"""Examples as columns, with the verdict that a live record would meet."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

from consumers.reasons import Reason
from pipelines.examples import ExampleDecoder
from pipelines.schema import Field, Schema
from tests.pipelines.example_files import example

pytestmark = pytest.mark.tensorflow
SCHEMA = Schema(
    features=(
        Field(name="x", source="x", dtype="float32", shape=(2,), max=50),
        Field(name="word", source="word", dtype="string", one_of=("a", "b")),
        Field(name="level", source="level", dtype="int8", missing=7),
        Field(name="tail", source="tail", dtype="int32", shape=(3,), pad=-1, length="tail_length"),
        Field(name="flag", source="flag", dtype="bool", missing=False),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
)
GOOD = {"x": [1.0, 2.0], "word": b"a", "level": 3, "tail": [1, 2, 3, 4], "flag": 1, "y": 1.0}
WITHOUT_X = {name: value for name, value in GOOD.items() if name != "x"}
BAD = {
    b"\xff\xff\xff": (Reason.MALFORMED, None),
    b"": (Reason.EMPTY, None),
    example(WITHOUT_X): (Reason.MISSING, "x"),
    example({**GOOD, "x": [1.0]}): (Reason.WRONG_SHAPE, "x"),
    example({**GOOD, "x": [b"1", b"2"]}): (Reason.WRONG_TYPE, "x"),
    example({**GOOD, "level": 1.5}): (Reason.WRONG_TYPE, "level"),
    example({**GOOD, "x": [float("nan"), 1.0]}): (Reason.NOT_FINITE, "x"),
    example({**GOOD, "x": [51.0, 1.0]}): (Reason.OUT_OF_RANGE, "x"),
    example({**GOOD, "level": 128}): (Reason.OUT_OF_RANGE, "level"),
    example({**GOOD, "flag": 2}): (Reason.OUT_OF_RANGE, "flag"),
    example({**GOOD, "word": b"c"}): (Reason.NOT_ALLOWED, "word"),
}


def test_columns_hold_what_the_examples_hold_padded_cut_and_filled_in() -> None:
    sparse = {"x": [3, 4], "word": b"b", "y": 0}
    found = ExampleDecoder(SCHEMA).decode([example(GOOD), example(sparse)])
    assert not found.refused
    assert found.columns["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found.columns["x"].dtype == np.float32
    assert found.columns["level"].tolist() == [3, 7]
    assert found.columns["tail"].tolist() == [[1, 2, 3], [-1, -1, -1]]
    assert found.lengths["tail"].tolist() == [4, 0]
    assert found.columns["flag"].tolist() == [True, False]
    assert found.columns["word"].tolist() == [b"a", b"b"]


@pytest.mark.parametrize("integers", [(), ("y", "x")])
def test_a_bad_example_is_refused_by_name_whatever_its_neighbours_are(integers: tuple[str, ...]) -> None:
    decoder = ExampleDecoder(SCHEMA, integers)
    texts: list[bytes | None] = [example(GOOD)]
    for bad in BAD:
        texts += [bad, example({**GOOD, "y": 0})]
    together = decoder.decode(texts)
    assert [(one.reason, one.field) for one in together.refused] == [*BAD.values()]
    assert together.kept.tolist() == list(range(0, len(texts), 2))
    assert together.columns["y"].tolist() == [1.0] + [0.0] * len(BAD)
    for bad, verdict in BAD.items():
        (alone,) = decoder.decode([bad]).refused
        assert (alone.reason, alone.field) == verdict
