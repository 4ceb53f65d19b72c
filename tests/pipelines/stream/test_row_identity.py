"""A row has one identity, wherever it is decoded, and others have others."""

import numpy as np

from millrace.pipelines.schema import Column, Field, Schema
from millrace.pipelines.stream.row_identity import RowIdentity, in_share
from millrace.training.model.export.answers import raw_columns

SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32"),
        Field(name="pair", source="pair", dtype="float64", shape=(2,)),
        Field(name="user", source="user", dtype="int64"),
        Field(name="on", source="on", dtype="bool"),
        Field(name="word", source="word", dtype="string"),
        Field(name="kind", source="kind", dtype="int32", one_of=("a", "b"), classes=("a", "b")),
        Field(name="tags", source="tags", dtype="int32", shape=(3,), pad=0),
    )
)
ROWS = 2000
RANDOM = np.random.default_rng(1)
COLUMNS: dict[str, Column] = {
    "price": RANDOM.random(ROWS).astype(np.float32),
    "pair": RANDOM.random((ROWS, 2)),
    "user": RANDOM.integers(0, 9, ROWS),
    "on": RANDOM.random(ROWS) < 0.5,
    "word": np.array([f"w{at % 7}".encode() for at in range(ROWS)], object),
    "kind": RANDOM.integers(0, 2, ROWS).astype(np.int32),
    "tags": np.zeros((ROWS, 3), np.int32),
}


def test_a_row_that_goes_into_the_model_has_the_identity_of_its_record() -> None:
    identity = RowIdentity(SCHEMA)
    assert identity.names == ["kind", "on", "pair", "price", "user", "word"], "no list of varying length"
    whole = identity.of(COLUMNS)
    assert identity.of(raw_columns(SCHEMA, COLUMNS)).tolist() == whole.tolist()
    assert identity.of({name: column[5:6] for name, column in COLUMNS.items()}).tolist() == whole[5:6].tolist()
    assert len(set(whole.tolist())) == ROWS
    for name in identity.names:
        other = {**COLUMNS, name: np.roll(COLUMNS[name], 1, axis=0)}
        same = (other[name] == COLUMNS[name]).reshape(ROWS, -1).all(axis=1)
        assert ((identity.of(other) == whole) == same).all(), name
    swapped = {**COLUMNS, "pair": COLUMNS["pair"][:, ::-1]}
    assert not (identity.of(swapped) == whole).any()


def test_a_share_is_about_that_share() -> None:
    whole = RowIdentity(SCHEMA).of(COLUMNS)
    assert 60 < in_share(whole, 0.05).sum() < 140
    assert in_share(whole, 1.0).all()
    assert (in_share(whole, 0.05) <= in_share(whole, 0.1)).all()
