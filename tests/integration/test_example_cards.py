"""The cards do what their files say: records that fit the settings, a model that judges by what came before."""

import json
import runpy
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from millrace.app.settings import load, to_schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "cards"
PRODUCE = runpy.run_path(str(EXAMPLE / "produce.py"))


def payments(count: int, seed: int = 0) -> list[tuple[bytes, dict[str, Any]]]:
    found = islice(PRODUCE["payments"](seed, 500.0, 1_763_694_000.0), count)
    return [(key, json.loads(value)) for key, value in found]


def test_the_records_hold_what_the_settings_say() -> None:
    settings = load(EXAMPLE / "cards.yaml", {}).settings
    assert settings.serve.memory.follows
    fields = {field.source for field in to_schema(settings.records).fields}
    ((key, record),) = payments(1)
    assert record.keys() == fields
    assert key.decode() == record["card"]
    thefts = [json.loads(value) for _, value in PRODUCE["theft"]("card-7")]
    assert all(record.keys() == fields and record["fraud"] for record in thefts)
    assert time.time() - 6 < thefts[0]["at"] / 1000 < thefts[-1]["at"] / 1000 < time.time()


def test_one_payment_tells_nothing_and_those_before_it_do() -> None:
    found = [record for _, record in payments(60_000)]
    assert found == [record for _, record in payments(60_000)]
    stolen = [record for record in found if record["fraud"]]
    honest = [record for record in found if not record["fraud"]]
    assert 0.02 < len(stolen) / len(found) < 0.1
    means = [sum(record["amount"] for record in some) / len(some) for some in (stolen, honest)]
    assert abs(means[0] / means[1] - 1) < 0.15, "the amounts are alike"

    def shops(some: list[dict[str, Any]]) -> float:
        seen = {(record["card"], record["merchant"]) for record in some}
        return len(seen) / len(some)

    assert shops(stolen) > 1.4 * shops(honest)
    assert max(Counter(record["card"] for record in stolen).values()) >= 8
