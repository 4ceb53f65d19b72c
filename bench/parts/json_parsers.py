"""What parsing JSON into columns costs, by pyarrow, as the product does it, and by awkward's parser for a schema.

    pip install awkward-cpp==57     # in an environment of your own; it is no requirement
    python bench/parts/json_parsers.py

Chunks of 16,384 records of several shapes, one thread, its CPU, in turns. awkward's parser (RapidJSON, made for a
schema) takes less time and is not used. A list in place of the one value of its last field makes it read beyond its own
instructions, which ends the process: `crashes` says whether it did, in a process apart. It also takes a key for any
name that the key begins with, and keeps the first of two equal keys, so all keys have to be looked at besides.

Nor is a parser of our own used that numba 0.68 compiles: one pass over the bytes, which takes plain records, whose
numbers come out as pyarrow rounds them, and leaves all others to pyarrow. On 2026-11-26 it took 0.97 us of these lists
and pyarrow 2.94, by name 1.12 and 4.32, four of them 1.40 and 2.21, of nested records 0.53 and 1.40. In functions that
can be read it is 518 lines and took 2.2 us; numba and LLVM are 208 MB on disk; and each start that finds no cache of an
earlier one compiles for 4 s of CPU, of such functions for 9.
"""

import argparse
import importlib
import io
import json
import multiprocessing as mp
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

CHUNK, WIDTH, TRIES = 16_384, 28, 200_000
NUMBER, NUMBERS = pa.float32(), pa.list_(pa.float32())
Instructions = list[list[Any]]


def shapes() -> dict[str, tuple[list[bytes], pa.Schema, Instructions]]:
    """Return records, what pyarrow is to read of them, and the same for awkward, by the name of the shape."""
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
            pa.schema([("x", NUMBERS), ("y", NUMBER)]),
            _table(x=[["VarLengthList", "x", "int64"], _number("in x")], y=[_number("y")]),
        ),
        "by name": (by_name, pa.schema([(name, NUMBER) for name in names]), _table(**{n: [_number(n)] for n in names})),
        "four of them": (
            by_name,
            pa.schema([(name, NUMBER) for name in names[:4]]),
            _table(**{name: [_number(name)] for name in names[:4]}),
        ),
        "nested": (
            nested,
            pa.schema([("user", user), ("items", pa.list_(pa.struct([("price", NUMBER)])))]),
            _table(
                user=_table(age=[_number("age")], land=[["FillString", "ends", "int64", "land", "uint8"]]),
                items=[
                    ["VarLengthList", "items", "int64"],
                    *(_moved(step, 1) for step in _table(price=[_number("price")])),
                ],
            ),
        ),
    }


def _number(name: str) -> list[Any]:
    return ["FillNumber", name, "float64"]


def _table(**members: Instructions) -> Instructions:
    """Return the instructions for an object, in which those of a member begin behind the table of names."""
    table: Instructions = [["KeyTableHeader", len(members)]]
    at = 1 + len(members)
    inside: Instructions = []
    for name, steps in members.items():
        table.append(["KeyTableItem", name, at + len(inside)])
        inside += [_moved(step, at + len(inside)) for step in steps]
    return table + inside


def _moved(step: list[Any], by: int) -> list[Any]:
    return [*step[:2], step[2] + by] if step[0] == "KeyTableItem" else step


def by_pyarrow(text: bytes, schema: pa.Schema) -> int:
    """Parse as the product does; return the rows."""
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return int(pyarrow.json.read_json(pa.BufferReader(text), read_options=read, parse_options=parse).num_rows)


def by_awkward(text: bytes, instructions: Instructions) -> int:
    """Parse with awkward; return the rows."""
    parse = importlib.import_module("awkward_cpp.lib._ext").fromjsonobj_schema
    options: tuple[Any, ...] = (False, 1 << 20, None, None, None, json.dumps(instructions), 1024, 8.0)
    return int(parse(io.BytesIO(text), {}, *options))


def lists_for_a_value() -> None:
    """Give awkward a list for its last field's one value, many times."""
    random = np.random.default_rng(1)
    for _ in range(TRIES):
        names = [f"f{number}" for number in range(random.integers(1, WIDTH))]
        fields = {
            name: [["FillByteMaskedArray", f"in {name}", "int8"], ["FillInteger", name, "int64"]] for name in names
        }
        ends = [b"[1,2]}", b"[3", b"[1,2]}]", b'[{"a":1}]', b"[[1],[2]]}", b'["x"]}']
        record = b"{%s%s" % (b"".join(b'"%s":1,' % name.encode() for name in names[:-1]), b'"%s":' % names[-1].encode())
        try:
            by_awkward(record + ends[random.integers(len(ends))], _table(**fields))
        except ValueError:
            continue


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
    for name, (records, schema, instructions) in shapes().items():
        text = b"\n".join([*records, b""])
        turns = [(took(by_pyarrow, text, schema), took(by_awkward, text, instructions)) for _ in range(given.rounds)]
        pyarrow_us, awkward_us = (round(statistics.median(turn[at] for turn in turns), 2) for at in (0, 1))
        found[name] = {"bytes": len(text) // CHUNK, "pyarrow_us": pyarrow_us, "awkward_us": awkward_us}
    apart = mp.get_context("spawn").Process(target=lists_for_a_value)
    apart.start()
    apart.join()
    print(json.dumps({"shapes": found, "crashes": apart.exitcode != 0, "exit": apart.exitcode}))


if __name__ == "__main__":
    main()
