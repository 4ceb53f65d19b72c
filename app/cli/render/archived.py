"""An archive in words, in rows and as JSON. Pure; nothing is read here."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from millrace.consumers.archive.archive_account import by_partition
from millrace.consumers.archive.shards import Shard, Survey
from millrace.consumers.rounded import rounded_size

HEADINGS = ("partition", "shards", "records", "first offset", "last offset", "size", "oldest", "newest", "gaps")


def rows(found: Survey) -> list[list[str]]:
    """Return a row for each partition."""
    return [
        [
            str(archived.partition),
            f"{len(archived.shards):,}",
            f"{archived.records:,}",
            str(archived.shards[0].first),
            str(archived.shards[-1].next_offset - 1),
            rounded_size(archived.size),
            _moment(min(shard.earliest_ms for shard in archived.shards)),
            _moment(max(shard.latest_ms for shard in archived.shards)),
            f"{sum(gap.offsets for gap in archived.gaps):,}" if archived.gaps else "",
        ]
        for archived in by_partition(found.shards)
    ]


def remarks(found: Survey) -> Iterator[str]:
    """Yield a sentence for each gap and each problem."""
    for archived in by_partition(found.shards):
        for gap in archived.gaps:
            yield (
                f"gap: {gap.partition} has no offsets {gap.first} to {gap.next_offset - 1} ({gap.offsets:,}): Kafka "
                "had removed them before they were archived"
            )
    yield from (f"damaged: {problem}" for problem in found.problems)


def as_json(found: Survey) -> dict[str, Any]:
    """Return everything that is known about the archive."""
    partitions = by_partition(found.shards)
    gaps = [gap for archived in partitions for gap in archived.gaps]
    return {
        "shards": [shard_as_json(shard) for shard in found.shards],
        "gaps": [{"partition": str(gap.partition), "first": gap.first, "next_offset": gap.next_offset} for gap in gaps],
        "records": sum(archived.records for archived in partitions),
        "missing_offsets": sum(gap.offsets for gap in gaps),
        "bytes": sum(archived.size for archived in partitions),
        "problems": list(found.problems),
    }


def shard_as_json(shard: Shard) -> dict[str, Any]:
    """Return the facts of one shard."""
    return {
        "partition": str(shard.partition),
        "first": shard.first,
        "next_offset": shard.next_offset,
        "records": shard.records,
        "earliest_ms": shard.earliest_ms,
        "latest_ms": shard.latest_ms,
        "bytes": shard.size,
        "sha256": shard.sha256,
        "file": shard.path,
    }


def pruned_in_words(shards: Sequence[Shard], *, dry_run: bool) -> str:
    """Say what was removed, or would be."""
    records, size = sum(shard.records for shard in shards), rounded_size(sum(shard.size for shard in shards))
    verb = "would be removed" if dry_run else "were removed"
    return f"{len(shards):,} shards with {records:,} records ({size}) {verb}"


def _moment(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
