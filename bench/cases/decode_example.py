"""How fast `tf.train.Example` records are decoded: beside `tf.io.parse_example` alone.

Both take the same chunks in turns, in one process, and time is that of its CPU; a ratio is taken of each turn by
itself, as what slows the machine slows both. Beside it, the product on the same chunks where one record in a hundred
is cut short: such a chunk is sorted record by record.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "parts"))

import parse_example
from rig import report

from millrace.app.service.process import tune
from millrace.consumers.handoff import JOINED_RECORDS
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema

CHUNK, BAD_EVERY = JOINED_RECORDS, 100
SCHEMA = Schema(
    features=(
        Field(name="x", source="x", dtype="float32", shape=(parse_example.FEATURES,)),
        Field(name="hour", source="hour", dtype="int64"),
        Field(name="land", source="land", dtype="string"),
        Field(name="tags", source="tags", dtype="int64", shape=(parse_example.TAGS,), pad=0),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
)


def rate(parse: Callable[[Sequence[bytes]], int], chunks: Sequence[Sequence[bytes]]) -> float:
    """Return the rows for each second of the CPU."""
    began = time.process_time()
    rows = sum(map(parse, chunks))
    return rows / (time.process_time() - began)


def main() -> None:
    """Read the options, measure, print."""
    tune()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    records = parse_example.records(min(given.records, 8 * CHUNK))
    chunks = [records[at : at + CHUNK] for at in range(0, len(records), CHUNK)]
    chunks = [chunks[at % len(chunks)] for at in range(max(1, given.records // CHUNK))]
    poisoned = [[value[:-1] if i % BAD_EVERY == 0 else value for i, value in enumerate(chunk)] for chunk in chunks]
    decoder = make_decoder("example", SCHEMA)

    def decoded(values: Sequence[bytes]) -> int:
        found = decoder.decode(values)
        return len(found.kept) + len(found.refused)

    ratios, kept, rates = list[float](), list[float](), list[float]()
    for turn in range(given.rounds + 1):
        bare, ours, bad = rate(parse_example.parse, chunks), rate(decoded, chunks), rate(decoded, poisoned)
        if turn:
            ratios.append(ours / bare)
            kept.append(bad / ours)
            rates.append(ours)
    report(
        {"example_of_parse_example": round(statistics.median(ratios), 3)},
        {
            "example_poisoned_of_clean": round(statistics.median(kept), 3),
            "example_records_per_cpu_s": round(statistics.median(rates)),
        },
    )


if __name__ == "__main__":
    main()
