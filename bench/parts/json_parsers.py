"""What parsing JSON into columns costs: by the product's compiled code, and by pyarrow's parser beside it.

    python bench/parts/json_parsers.py

Chunks of 16,384 records of several shapes, one thread, its CPU, in turns.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from millrace.pipelines.formats.shared.pieces import joined
from millrace.pipelines.formats.shared.plain_rows import PlainReader

CHUNK, WIDTH = 16_384, 28
NUMBER = pa.float32()


def shapes() -> dict[str, tuple[list[bytes], pa.Schema]]:
    """Return records, and what is to be read of them, by the name of the shape."""
    rows = np.random.default_rng(1).standard_normal((CHUNK, WIDTH)).round(6).tolist()
    names = [f"f{number:02}" for number in range(WIDTH)]
    by_name = [json.dumps(dict(zip(names, row, strict=True))).encode() for row in rows]
    nested = [
        json.dumps({"user": {"age": row[0], "land": "NO"}, "items": [{"price": price} for price in row[:2]]}).encode()
        for row in rows
    ]
    user = pa.struct([("age", NUMBER), ("land", pa.binary())])
    return {
        "a list": (
            [json.dumps({"x": row, "y": 1}).encode() for row in rows],
            pa.schema([("x", pa.list_(NUMBER)), ("y", NUMBER)]),
        ),
        "by name": (by_name, pa.schema([(name, NUMBER) for name in names])),
        "four of them": (by_name, pa.schema([(name, NUMBER) for name in names[:4]])),
        "nested": (nested, pa.schema([("user", user), ("items", pa.list_(pa.struct([("price", NUMBER)])))])),
    }


def by_pyarrow(text: bytes, schema: pa.Schema) -> int:
    """Parse as the product does what is not plain, and all where no code was compiled; return the rows."""
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return int(pyarrow.json.read_json(pa.BufferReader(text), read_options=read, parse_options=parse).num_rows)


def by_rows(records: pa.BinaryArray, reader: PlainReader) -> int:
    """Parse with the compiled code; return the rows."""
    return int(reader.read(records)[0].num_rows)


def took(parse: Callable[..., int], *given: Any) -> float:
    """Return the CPU's microseconds for a record."""
    began = time.thread_time()
    assert parse(*given) == CHUNK
    return (time.thread_time() - began) / CHUNK * 1e6


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name, (records, schema) in shapes().items():
        text, reader = joined(records), PlainReader("read_json", schema, b",[", ())
        array = pa.array(records, pa.binary())
        turns = [(took(by_pyarrow, text, schema), took(by_rows, array, reader)) for _ in range(given.rounds)]
        pyarrow_us, rows_us = (round(statistics.median(turn[at] for turn in turns), 2) for at in (0, 1))
        found[name] = {"bytes": len(text) // CHUNK, "pyarrow_us": pyarrow_us, "compiled_us": rows_us}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
