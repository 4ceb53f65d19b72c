"""How fast Protobuf records are decoded: beside protobuf's own parser record by record, and beside ptars alone.

All take the same chunks in turns, in one process, and time is that of its CPU; a ratio is taken of each turn by itself,
as what slows the machine slows all. Beside it, the product on the same chunks where one record in a hundred is cut
short: protobuf is then asked about each record.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "parts"))

import parse_protobuf
from rig import report

from millrace.app.service.process import tune
from millrace.consumers.handoff import JOINED_RECORDS
from millrace.pipelines.formats.protobuf.decoder import ProtobufDecoder
from millrace.pipelines.schema import Field, Schema

CHUNK, BAD_EVERY = JOINED_RECORDS, 100
SCHEMA = Schema(
    features=(
        Field(name="id", source="id", dtype="int64"),
        Field(name="price", source="price", dtype="float32"),
        Field(name="score", source="score", dtype="float32"),
        Field(name="hour", source="hour", dtype="int32"),
        Field(name="mobile", source="mobile", dtype="bool"),
        Field(name="shop", source="shop", dtype="string"),
        Field(name="age", source="user.age", dtype="int32"),
        Field(name="country", source="user.country", dtype="string"),
        Field(name="numbers", source="numbers", dtype="float32", shape=(parse_protobuf.NUMBERS,)),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
    event_time=Field(name="event_time", source="at", dtype="int64"),
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
    described = parse_protobuf.descriptors()
    message = parse_protobuf.message_of(described)
    records = parse_protobuf.records(min(given.records, 8 * CHUNK), message)
    chunks = [records[at : at + CHUNK] for at in range(0, len(records), CHUNK)]
    chunks = [chunks[at % len(chunks)] for at in range(max(1, given.records // CHUNK))]
    poisoned = [[value[:-1] if i % BAD_EVERY == 0 else value for i, value in enumerate(chunk)] for chunk in chunks]
    by_record, by_ptars = parse_protobuf.by_record(message), parse_protobuf.by_ptars(message)
    decoder = ProtobufDecoder(SCHEMA, descriptors=described, message="Click")

    def decoded(values: Sequence[bytes]) -> int:
        found = decoder.decode(values)
        return len(found.kept) + len(found.refused)

    over_upb, of_ptars, kept, rates = list[float](), list[float](), list[float](), list[float]()
    for turn in range(given.rounds + 1):
        upb, alone = rate(by_record, chunks), rate(by_ptars, chunks)
        ours, bad = rate(decoded, chunks), rate(decoded, poisoned)
        if turn:
            over_upb.append(ours / upb)
            of_ptars.append(ours / alone)
            kept.append(bad / ours)
            rates.append(ours)
    report(
        {"protobuf_over_upb": round(statistics.median(over_upb), 2)},
        {
            "protobuf_of_ptars": round(statistics.median(of_ptars), 3),
            "protobuf_poisoned_of_clean": round(statistics.median(kept), 3),
            "protobuf_records_per_cpu_s": round(statistics.median(rates)),
        },
    )


if __name__ == "__main__":
    main()
