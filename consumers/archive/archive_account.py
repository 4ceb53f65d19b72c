"""What an archive holds by partition: its range, its size, and the gaps between its shards. Pure; runs anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

from millrace.consumers.archive.shards import Shard
from millrace.consumers.records import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets between two shards, which are in neither: Kafka's retention removed them before they were archived."""

    partition: Partition
    first: int
    next_offset: int

    @property
    def offsets(self) -> int:
        """How many offsets it has; compaction may have removed some of their records before."""
        return self.next_offset - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """What the archive holds of one partition."""

    partition: Partition
    shards: tuple[Shard, ...]
    gaps: tuple[Gap, ...]

    @property
    def records(self) -> int:
        return sum(shard.records for shard in self.shards)

    @property
    def size(self) -> int:
        return sum(shard.size for shard in self.shards)


def by_partition(shards: Sequence[Shard]) -> list[ArchivedPartition]:
    """Return what a sorted listing holds of each partition."""
    return [
        ArchivedPartition(
            partition=partition,
            shards=(own := tuple(group)),
            gaps=(
                tuple(
                    Gap(partition=after.partition, first=before.next_offset, next_offset=after.first)
                    for before, after in pairwise(own)
                    if before.next_offset < after.first
                )
            ),
        )
        for partition, group in groupby(shards, attrgetter("partition"))
    ]


def prunable(shards: Sequence[Shard], before_ms: int) -> list[Shard]:
    """Return the shards of which each record is older than a time, from each partition's first shard on.

    The last shard of a partition stays, as it says where the archiver resumes; so do shards behind one that stays, so
    that no gap arises.
    """
    found: list[Shard] = []
    for archived in by_partition(shards):
        for shard in archived.shards[:-1]:
            if shard.latest_ms >= before_ms:
                break
            found.append(shard)
    return found


def remove(shards: Sequence[Shard]) -> None:
    """Remove shards of one archive durably, the last one first, so that a kill leaves no gap that pruning has made."""
    if shards:
        shards[0].store.remove([shard.key for shard in reversed(shards)])
        shards[0].store.remove([shard.facts_key for shard in shards])
