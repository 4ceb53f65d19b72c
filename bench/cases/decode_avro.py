"""How fast Avro records are decoded: beside fastavro's reader alone.

Both take the same chunks in turns, in one process, and time is that of its CPU; a ratio is taken of each turn by
itself, as what slows the machine slows both. The records have ten fields of many types, all of which are asked for.
Beside it: records of 28 floats, and the ten fields where one record in a hundred is cut short.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "parts"))

import read_avro
from rig import report

from millrace.app.service.process import tune
from millrace.consumers.handoff import JOINED_RECORDS
from millrace.pipelines.formats import Decoder
from millrace.pipelines.formats.avro.decoder import AvroDecoder
from millrace.pipelines.schema import DType, Field, Schema

CHUNK, BAD_EVERY = JOINED_RECORDS, 100
MIXED: Mapping[str, DType] = {
    "id": "int64",
    "price": "float32",
    "hour": "int32",
    "ad": "string",
    "seen": "bool",
    "share": "float32",
    "land": "string",
    "paid": "float32",
    "at": "int64",
    "count": "int32",
}


def decoder_of(writer: object, dtypes: Mapping[str, DType]) -> Decoder:
    fields = tuple(
        Field(name=name, source=name, dtype=dtype, missing=0.0 if name == "paid" else None)
        for name, dtype in dtypes.items()
    )
    return AvroDecoder(Schema(features=fields), json.dumps(writer), "bench")


def rate(parse: Callable[[Sequence[bytes]], int], chunks: Sequence[Sequence[bytes]]) -> float:
    """Return the rows for each second of the CPU."""
    began = time.process_time()
    rows = sum(map(parse, chunks))
    return rows / (time.process_time() - began)


def chunks_of(kind: str, records: int) -> list[list[bytes]]:
    values = read_avro.records(kind, min(records, 8 * CHUNK))
    chunks = [values[at : at + CHUNK] for at in range(0, len(values), CHUNK)]
    return [chunks[at % len(chunks)] for at in range(max(1, records // CHUNK))]


def main() -> None:
    """Read the options, measure, print."""
    tune()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    mixed, floats = chunks_of("mixed", given.records), chunks_of("floats", given.records)
    poisoned = [[value[:-1] if i % BAD_EVERY == 0 else value for i, value in enumerate(chunk)] for chunk in mixed]
    of_mixed = decoder_of(read_avro.WRITER, MIXED)
    of_floats = decoder_of(read_avro.SENSORS, {f"x{at}": "float32" for at in range(read_avro.FLOATS)})

    def decoding(decoder: Decoder) -> Callable[[Sequence[bytes]], int]:
        def decoded(values: Sequence[bytes]) -> int:
            found = decoder.decode(values)
            return len(found.kept) + len(found.refused)

        return decoded

    ratios, fixed, kept, rates = list[float](), list[float](), list[float](), list[float]()
    for turn in range(given.rounds + 1):
        bare, ours = rate(lambda values: read_avro.read("mixed", values), mixed), rate(decoding(of_mixed), mixed)
        bare_floats = rate(lambda values: read_avro.read("floats", values), floats)
        ours_floats, bad = rate(decoding(of_floats), floats), rate(decoding(of_mixed), poisoned)
        if turn:
            ratios.append(ours / bare)
            fixed.append(ours_floats / bare_floats)
            kept.append(bad / ours)
            rates.append(ours)
    report(
        {"avro_over_fastavro": round(statistics.median(ratios), 2)},
        {
            "avro_floats_over_fastavro": round(statistics.median(fixed), 2),
            "avro_poisoned_of_clean": round(statistics.median(kept), 3),
            "avro_records_per_cpu_s": round(statistics.median(rates)),
        },
    )


if __name__ == "__main__":
    main()
