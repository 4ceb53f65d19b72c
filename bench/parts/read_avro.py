"""FROZEN REFERENCE: fastavro's `schemaless_reader` alone. Do not optimise it, and share no code with the product.

It makes rows, and no columns.

A case of the service calls this in the process in which it measures the product, in turns.
"""

import io
import random
from collections.abc import Sequence

import fastavro

FLOATS = 28
WRITER = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "hour", "type": "int"},
        {"name": "ad", "type": "string"},
        {"name": "seen", "type": "boolean"},
        {"name": "share", "type": "float"},
        {"name": "land", "type": {"type": "enum", "name": "Land", "symbols": ["DE", "NO", "SE"]}},
        {"name": "paid", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "count", "type": "int"},
    ],
}
SENSORS = {
    "type": "record",
    "name": "Sensors",
    "fields": [{"name": f"x{at}", "type": "float"} for at in range(FLOATS)],
}
_PARSED = {"mixed": fastavro.parse_schema(WRITER), "floats": fastavro.parse_schema(SENSORS)}


def records(kind: str, count: int) -> list[bytes]:
    """Records of ten fields of many types, or of 28 floats."""
    drawn, made = random.Random(7), []
    for _ in range(count):
        value: dict[str, object] = {f"x{at}": drawn.random() for at in range(FLOATS)}
        if kind == "mixed":
            value = {
                "id": drawn.randrange(10**9),
                "price": drawn.random(),
                "hour": drawn.randrange(24),
                "ad": f"ad{drawn.randrange(10_000)}",
                "seen": drawn.random() < 0.5,
                "share": drawn.random(),
                "land": drawn.choice(["DE", "NO", "SE"]),
                "paid": None if drawn.random() < 0.1 else drawn.random(),
                "at": 1_700_000_000_000 + drawn.randrange(10**6),
                "count": drawn.randrange(1000),
            }
        out = io.BytesIO()
        fastavro.schemaless_writer(out, _PARSED[kind], value)
        made.append(out.getvalue())
    return made


def read(kind: str, values: Sequence[bytes]) -> int:
    """Read a chunk into rows; return how many there are."""
    schema = _PARSED[kind]
    return len([fastavro.schemaless_reader(io.BytesIO(value), schema) for value in values])
