"""Reading a golden set: the same rows of any of its forms, and one line for what it cannot be."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.training.model.golden import golden_records
from millrace.training.model.golden.golden_records import GoldenRecords, read_golden
from tests.consumers.archive import records
from tests.pipelines.files.example_files import example, write

pytestmark = pytest.mark.tensorflow
SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32"),
        Field(name="city", source="buyer.city", dtype="string", missing="none"),
        Field(name="tags", source="tags", dtype="int32", shape=(2,)),
    ),
    labels=(Field(name="clicked", source="clicked", dtype="float32"),),
    weight=Field(name="weight", source="importance", dtype="float32"),
)
ROWS: list[dict[str, Any]] = [
    {"price": at + 0.25, "buyer": {"city": f"c{at}"}, "tags": [at, -at], "clicked": at % 2, "importance": 1.0 + at}
    for at in range(5)
]
BAD = {**ROWS[0], "tags": [1]}


def read(path: Path, schema: Schema = SCHEMA) -> GoldenRecords:
    return read_golden(path, schema, partial(make_decoder, "json", schema))


def parquet(path: Path, rows: Sequence[dict[str, Any]] = (*ROWS, BAD)) -> Path:
    pq.write_table(pa.Table.from_pylist([*rows]), path)
    return path


def archive(path: Path, start: int = 100) -> Path:
    rows = [*ROWS, BAD]
    chunk = records.chunk(start, start + len(rows), partition=Partition("clicks", 1))
    records.shard_of(path, [replace(chunk, values=[json.dumps(row).encode() for row in rows])])
    return path


def test_a_file_of_columns_and_an_archive_give_the_rows_that_the_topic_would(tmp_path: Path) -> None:
    for found in (read(parquet(tmp_path / "golden.parquet")), read(archive(tmp_path / "golden"))):
        assert (found.rows, found.refused) == (len(ROWS), 1)
        assert found.complaint.endswith("wrong_shape (tags)")
        assert found.features["price"].tolist() == [row["price"] for row in ROWS]
        assert found.features["city"].tolist() == [row["buyer"]["city"].encode() for row in ROWS]
        assert found.features["tags"].tolist() == [row["tags"] for row in ROWS]
        assert found.labels["clicked"].tolist() == [row["clicked"] for row in ROWS]
        assert found.weights.tolist() == [row["importance"] for row in ROWS]
        assert found.features["price"].dtype == np.float32


def test_a_file_of_examples_is_read_and_its_hash_is_that_of_the_file(tmp_path: Path) -> None:
    flat = replace(SCHEMA, features=(SCHEMA.features[0], SCHEMA.features[2]), weight=None)
    path = tmp_path / "golden.tfrecord.gz"
    write(
        path, [example({"price": row["price"], "tags": row["tags"], "clicked": float(row["clicked"])}) for row in ROWS]
    )
    found = read(path, flat)
    assert (found.rows, found.weights.tolist()) == (5, [1.0] * 5)
    assert found.features["tags"].tolist() == [row["tags"] for row in ROWS]
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_hash_of_an_archive_is_another_for_other_records_and_not_for_a_copy(tmp_path: Path) -> None:
    one, copy, other = (read(archive(tmp_path / name, start)) for name, start in (("a", 0), ("b", 0), ("c", 50)))
    assert one.sha256 == copy.sha256 != other.sha256


def test_a_column_that_may_be_missing_may_be_missing_from_the_file(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "buyer"} for row in ROWS]
    assert read(parquet(tmp_path / "golden.parquet", rows)).features["city"].tolist() == [b"none"] * 5


def shard_alone(path: Path) -> Path:
    return next(archive(path / "archive").rglob("*.parquet"))


def lacking(path: Path) -> Path:
    return parquet(path / "g.parquet", [{"price": 1.0, "tags": [1, 2], "importance": 1.0}])


def of_bytes(path: Path) -> Path:
    return parquet(path / "g.parquet", [{**ROWS[0], "clicked": b"1"}])


def torn(path: Path) -> Path:
    whole = parquet(path / "g.parquet")
    whole.write_bytes(whole.read_bytes()[:200])
    return whole


def no_records(path: Path) -> Path:
    (path / "g.csv").write_text("price,clicked\n1,2\n")
    return path / "g.csv"


def refused(path: Path) -> Path:
    return parquet(path / "g.parquet", [BAD, BAD])


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda path: path / "none.parquet", "none.parquet cannot be read: No such file or directory"),
        (lacking, "g.parquet has no column 'clicked'; its columns are price, tags, importance"),
        (of_bytes, "Object of type bytes is not JSON serializable; write numbers, texts"),
        (torn, "g.parquet cannot be read: "),
        (no_records, "g.csv is neither Parquet nor TFRecord"),
        (refused, "g.parquet has no record that decodes; record 0: wrong_shape (tags)"),
        (shard_alone, "is a shard of an archive; name the archive's folder"),
        (lambda path: path, "has no record that decodes; it is empty"),
    ],
)
def test_what_cannot_be_a_golden_set_is_one_line(tmp_path: Path, made: Callable[[Path], Path], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(made(tmp_path))
    assert text in str(caught.value)
    assert str(caught.value).startswith("golden.path: ")
    assert "\n" not in str(caught.value)


def test_what_lies_beside_the_value_is_in_an_archive_alone(tmp_path: Path) -> None:
    keyed = replace(SCHEMA, features=(*SCHEMA.features, Field(name="key", source="$key", dtype="string")))
    with pytest.raises(ConfigError, match="'key' is \\$key, which Kafka has beside the value"):
        read(parquet(tmp_path / "golden.parquet"), keyed)
    keyless = read(archive(tmp_path / "golden"), replace(keyed, features=(replace(keyed.features[-1], missing=""),)))
    assert keyless.rows == 6


@pytest.mark.parametrize(("limit", "most"), [("MOST_ROWS", 5), ("MOST_BYTES", 100)])
def test_a_set_beyond_the_limits_is_refused_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(golden_records, limit, most)
    for path in (parquet(tmp_path / "golden.parquet"), archive(tmp_path / "golden")):
        with pytest.raises(ConfigError, match="limit: every checkpoint scores them all; take a sample"):
            read(path)
