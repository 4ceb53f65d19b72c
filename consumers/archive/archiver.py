"""Archives chunks: each partition has one open shard, which is closed when it is large or old enough.

Owns the open shards, and what they have collected: 8 MiB of each partition at most, and `memory_bytes` of all together;
then the partition with the most writes it. A chunk is split where a piece or a shard is full, so a shard is a sixteenth
larger than it should be at most, besides its last record and what the format has at its end. Runs on one thread. A
chunk of offsets that Kafka's retention has removed ends its partition's shard, so that a gap between two shards is what
nobody could archive. Ends with `close_all`, or with `abandon_all`: then what was collected since the last closed shards
is not in the archive, and Kafka still has it.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.shard_names import Format
from millrace.consumers.archive.shard_writer import OpenShard, WaitForRoom
from millrace.consumers.archive.shards import Shard
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Chunk, Partition
from millrace.consumers.rounded import rounded_size

log = logging.getLogger(__name__)

_PIECE_BYTES = 8 * 2**20
"""A piece is read as a whole: large enough that reading is fast, small enough that many can be open."""
_LAST_PIECES = 16
"""The last pieces of a shard have this part of its size, or else they would be ever smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Where shards are written, in which format, and when one is closed."""

    place: Place
    format: Format
    shard_bytes: int
    """A shard is closed when its file has this many bytes."""
    shard_age_s: float
    """A shard is closed this many seconds after its first record came."""
    shard_records: int | None = None
    """A shard is closed when it has about this many records; None closes none for their number."""
    memory_bytes: int
    """Most bytes of records that all open shards collect before they write them."""


@dataclass(slots=True, kw_only=True)
class ArchiveTotals:
    """What one archiver has done."""

    shards: int = 0
    records: int = 0
    lost: int = 0
    """Offsets that Kafka's retention removed before they were archived."""


@dataclass(slots=True)
class _Open:
    shard: OpenShard
    since: float = field(default=0.0)
    """When its first record came, on the monotonic clock; meaningless without one."""


class Archiver:
    """The open shards of one process."""

    def __init__(
        self, options: ArchiveOptions, wait_for_room: WaitForRoom, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.totals = ArchiveTotals()
        self._options, self._wait_for_room, self._clock = options, wait_for_room, clock
        self._most_records = math.inf if options.shard_records is None else options.shard_records
        self._open: dict[Partition, _Open] = {}

    def add(self, chunk: Chunk) -> None:
        """Take a chunk, which begins where the last one of its partition ended."""
        if chunk.lost:
            self._close(chunk.partition)
            self.totals.lost += chunk.lost
            return
        rest: Chunk | None = chunk
        while rest is not None:
            held = self._opened(rest)
            part, rest = self._fitting(rest, held.shard)
            if not held.shard.records:
                held.since = self._clock()
            held.shard.add(part)
            self._write(held.shard)
            if held.shard.size >= self._options.shard_bytes or held.shard.records >= self._most_records:
                self._close(chunk.partition)

    def close_aged(self) -> None:
        """Close the shards that are old enough. To be called every second or so."""
        due = self._clock() - self._options.shard_age_s
        for partition in [p for p, held in self._open.items() if held.shard.records and held.since <= due]:
            self._close(partition)

    def close_all(self) -> None:
        """Close every shard that holds a record, and forget the others."""
        for partition in list(self._open):
            self._close(partition)

    def abandon_all(self) -> int:
        """Remove the files of all open shards. Return how many records they held."""
        given_up = 0
        for held in self._open.values():
            given_up += held.shard.records
            held.shard.abandon()
        self._open.clear()
        return given_up

    def _opened(self, chunk: Chunk) -> _Open:
        """Return the open shard that goes on with this chunk."""
        held = self._open.get(chunk.partition)
        if held is None:
            options = self._options
            shard = OpenShard(options.place, chunk.partition, chunk.start, options.format, self._wait_for_room)
            held = self._open[chunk.partition] = _Open(shard)
        return held

    def _fitting(self, chunk: Chunk, shard: OpenShard) -> tuple[Chunk, Chunk | None]:
        """Return what of a chunk still belongs to the shard's present piece, a record at least, and the rest."""
        left = self._piece_bytes(shard) - shard.waiting_bytes
        rows = min(math.ceil(len(chunk) * left / max(1, chunk.nbytes)), self._most_records - shard.records)
        if rows >= len(chunk):
            return chunk, None
        part, rest = chunk.split(int(chunk.offsets[max(1, int(rows))]))
        last = Fingerprint.of(int(part.offsets[-1]), int(part.timestamps[-1]), part.keys[-1], part.values[-1])
        return replace(part, fingerprint=last), rest

    def _piece_bytes(self, shard: OpenShard) -> int:
        """Return how many bytes of records the present piece collects: what the shard still takes, packed as so far."""
        size = self._options.shard_bytes
        packed = shard.size / shard.written_bytes if shard.written_bytes else 1.0
        return math.ceil(min(_PIECE_BYTES, max(size - shard.size, size / _LAST_PIECES) / packed))

    def _write(self, shard: OpenShard) -> None:
        """Write a piece of this shard if it has collected one, or of the largest while all hold too much."""
        if shard.waiting_bytes >= self._piece_bytes(shard):
            shard.flush()
        waiting = [held.shard for held in self._open.values()]
        if sum(each.waiting_bytes for each in waiting) > self._options.memory_bytes:
            max(waiting, key=lambda each: each.waiting_bytes).flush()

    def _close(self, partition: Partition) -> None:
        held = self._open.get(partition)
        # A shard without a record, as behind the last transaction, is not closed: its range is read again.
        if held is not None and held.shard.records:
            shard = held.shard.close()
            self.totals.shards += 1
            self.totals.records += shard.records
            _report(shard)
        self._open.pop(partition, None)


def _report(shard: Shard) -> None:
    log.info(
        "archived %s: %d records at offsets %d to %d, %s",
        shard.partition,
        shard.records,
        shard.first,
        shard.next_offset - 1,
        rounded_size(shard.size),
    )
