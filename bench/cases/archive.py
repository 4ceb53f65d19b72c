"""How fast the archive writes and reads, over what pyarrow alone does with the same records in the same run.

Both write the same chunks of the benchmark's JSON to Parquet with zstd, in pieces of the same size; ours also hashes,
adds checksums, syncs and describes the file. Both read their own file piece by piece; ours compares the checksums.
Rounds alternate, and a figure is the median of their ratios by the process's CPU time, as the machine may do other
things; the ratios by time on the clock are beside them.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import produce
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.consumers.archive.archiver import OpenShard
from millrace.consumers.archive.shard_reader import pieces, read, read_piece
from millrace.consumers.archive.shards import Shard
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Chunk, Partition

CHUNK_RECORDS = 4096
Took = tuple[float, float]
"""CPU and clock, in seconds."""
A_PIECE = 5
"""Chunks of a piece: about 8 MiB."""
COLUMNS = pa.schema(
    [("offset", pa.int64()), ("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary())],
)


def chunks_of(count: int) -> list[Chunk]:
    """The benchmark's records, as the consumer hands them over."""
    values = [value for slice_ in produce.records(0, count, "json") for value in slice_]
    return [_chunk(start, values[start : start + CHUNK_RECORDS]) for start in range(0, len(values), CHUNK_RECORDS)]


def _chunk(start: int, values: list[bytes]) -> Chunk:
    end = start + len(values)
    offsets = np.arange(start, end)
    return Chunk(
        partition=Partition("bench", 0),
        incarnation=1,
        start=start,
        end=end,
        offsets=offsets,
        timestamps=offsets + 1_700_000_000_000,
        keys=[None] * len(values),
        values=values,
        headers=[()] * len(values),
        nbytes=sum(map(len, values)) + 128 * len(values),
        fetched_at=0.0,
        fingerprint=Fingerprint.of(end - 1, 0, None, values[-1]),
    )


def write_ours(folder: Path, chunks: Sequence[Chunk]) -> Shard:
    """Write one shard."""

    def full(error: OSError) -> None:
        raise error

    shard = OpenShard(folder, chunks[0].partition, 0, "parquet", full)
    for number, chunk in enumerate(chunks, 1):
        shard.add(chunk)
        if number % A_PIECE == 0:
            shard.flush()
    return shard.close()


def write_theirs(path: Path, chunks: Sequence[Chunk]) -> None:
    """Write the same with pyarrow alone."""
    with pq.ParquetWriter(path, COLUMNS, compression="zstd", compression_level=1) as writer:
        for first in range(0, len(chunks), A_PIECE):
            batches = [
                pa.record_batch(
                    [
                        pa.array(chunk.offsets),
                        pa.array(chunk.timestamps),
                        pa.array(chunk.keys, pa.binary()),
                        pa.array(chunk.values, pa.binary()),
                    ],
                    schema=COLUMNS,
                )
                for chunk in chunks[first : first + A_PIECE]
            ]
            writer.write_table(pa.Table.from_batches(batches).combine_chunks())


def read_ours(shard: Shard) -> int:
    """Read each piece as a table."""
    return sum(len(read_piece(piece)) for piece in pieces(shard))


def read_theirs(path: Path) -> int:
    """Read each row group as a table, with pyarrow alone."""
    count = pq.ParquetFile(path).metadata.num_row_groups
    return sum(len(pq.ParquetFile(path).read_row_group(index, use_threads=False)) for index in range(count))


def replay_ours(shard: Shard) -> int:
    """Read the shard as chunks have it: numbers in numpy, bytes in lists."""
    return sum(len(columns) for columns in read(shard))


def replay_theirs(path: Path) -> int:
    """Read the same, with pyarrow alone."""
    count, file = 0, pq.ParquetFile(path)
    for index in range(file.metadata.num_row_groups):
        table = file.read_row_group(index, use_threads=False)
        values, _ = table.column("value").to_pylist(), table.column("offset").to_numpy()
        count += len(values)
    return count


def took(work: Callable[[], object]) -> Took:
    """CPU and clock of one call, in seconds."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - cpu, time.perf_counter() - began


def one_round(folder: Path, chunks: Sequence[Chunk], *, ours_first: bool) -> dict[str, tuple[Took, Took]]:
    """Write and read once with ours and once with theirs; what each took."""
    theirs, made = folder / "theirs.parquet", list[Shard]()
    works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "write": (lambda: made.append(write_ours(folder, chunks)), lambda: write_theirs(theirs, chunks)),
        "read": (lambda: read_ours(made[0]), lambda: read_theirs(theirs)),
        "replay": (lambda: replay_ours(made[0]), lambda: replay_theirs(theirs)),
    }
    found = {}
    for name, (mine, other) in works.items():
        first, second = (mine, other) if ours_first else (other, mine)
        spent = {first: took(first), second: took(second)}
        found[name] = (spent[mine], spent[other])
    return found


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    chunks = chunks_of(given.records)
    megabytes = sum(len(value or b"") for chunk in chunks for value in chunk.values) / 1e6
    ours, clock, costs = (defaultdict[str, list[float]](list) for _ in range(3))
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="millrace-bench-archive-") as folder:
            for name, (mine, theirs) in one_round(Path(folder), chunks, ours_first=number % 2 == 0).items():
                ours[name].append(theirs[0] / mine[0])
                clock[name].append(theirs[1] / mine[1])
                costs[name].append(megabytes / mine[0])
    figures = {f"{name}_of_library": round(statistics.median(ours[name]), 3) for name in ("write", "read")}
    details = {"replay_of_library": round(statistics.median(ours["replay"]), 3), "megabytes": round(megabytes, 1)}
    details |= {f"{name}_of_library_by_clock": round(statistics.median(values), 3) for name, values in clock.items()}
    details |= {f"{name}_mb_per_cpu_s": round(statistics.median(values)) for name, values in costs.items()}
    print(json.dumps({"figures": figures, "details": details}))


if __name__ == "__main__":
    main()
