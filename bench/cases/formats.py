"""What decoding takes in formats that nest, beside their limit: one thread, the same chunks in turns, time of the CPU.

Nested JSON stands beside flat JSON: the same values, on paths through records and a list of records instead of at the
top, with a few fields that nobody reads. The braces, and the names on the way, are a quarter more bytes to parse.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rig import report

from millrace.pipelines.formats import Decoder, make_decoder
from millrace.pipelines.schema import Field, Schema

CHUNK = 20_000
SOURCES = {
    "age": "user.age",
    "lat": "user.geo.lat",
    "country": "user.country",
    "prices": "items[].price",
    "shop": "shop.id",
}
"""The paths of the fields in nested records, by their names in flat ones."""


def schema_of(sources: Mapping[str, str]) -> Schema:
    """Return what is read of a record."""
    return Schema(
        features=(
            Field(name="age", source=sources["age"], dtype="float32"),
            Field(name="lat", source=sources["lat"], dtype="float32"),
            Field(name="country", source=sources["country"], dtype="string"),
            Field(name="prices", source=sources["prices"], dtype="float32", shape=(2,)),
        ),
        labels=(Field(name="shop", source=sources["shop"], dtype="int64"),),
    )


def records(count: int) -> tuple[list[bytes], list[bytes]]:
    """Make records up, flat and nested."""
    random = np.random.default_rng(7)
    flat, nested = [], []
    for _ in range(count):
        age, shop, session = map(int, random.integers((1, 1, 1), (99, 10**6, 2**62)))
        lat, lon = random.uniform(-90, 90, 2).round(5).tolist()
        prices, country = random.uniform(0, 99, 2).round(2).tolist(), str(random.choice(["DE", "NO", "SE"]))
        rest = {"session": f"{session:016x}", "agent": "Mozilla/5.0", "ok": True}
        top = {"age": age, "lat": lat, "lon": lon, "country": country, "prices": prices, "amounts": [1, 2]}
        user = {"age": age, "country": country, "geo": {"lat": lat, "lon": lon}}
        items = [{"price": price, "amount": at + 1} for at, price in enumerate(prices)]
        flat.append(json.dumps({**top, "shop": shop, **rest}).encode())
        nested.append(json.dumps({"user": user, "items": items, "shop": {"id": shop}, **rest}).encode())
    return flat, nested


def cpu_s(decoder: Decoder, values: Sequence[bytes]) -> float:
    """Decode a chunk; return the CPU's seconds."""
    began = time.process_time()
    decoded = decoder.decode(values)
    took = time.process_time() - began
    if len(decoded.kept) != len(values):
        raise SystemExit(f"{len(values)} records decoded to {len(decoded.kept)} rows")
    return took


def nested_json(rounds: int) -> tuple[float, dict[str, Any]]:
    """Return the rate of nested JSON as a share of that of flat JSON, and what it is made of."""
    flat, nested = records(CHUNK)
    ways = {
        "flat": (make_decoder("json", schema_of({name: name for name in SOURCES})), flat),
        "nested": (make_decoder("json", schema_of(SOURCES)), nested),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        pair = {name: cpu_s(decoder, values) for name, (decoder, values) in ways.items()}
        for name, seconds in pair.items() if turn else ():
            took[name].append(seconds)
    # Of each turn by itself: what slows the machine slows both.
    ratio = statistics.median(one / other for one, other in zip(took["flat"], took["nested"], strict=True))
    return ratio, {
        "json_records_a_cpu_s": {name: round(CHUNK / statistics.median(each)) for name, each in took.items()},
        "json_bytes_a_record": {"flat": sum(map(len, flat)) // CHUNK, "nested": sum(map(len, nested)) // CHUNK},
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    ratio, details = nested_json(given.rounds)
    report({"nested_json_of_flat_json": round(ratio, 3)}, details)


if __name__ == "__main__":
    main()
