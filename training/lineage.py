"""Where a checkpoint comes from: its manifest, and out of its ledger what became of every offset. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.records import Partition
from training.account import PartitionStatistics
from training.checkpoints.inspection import Condition, Inspection
from training.checkpoints.store import CheckpointStore
from training.ledger import NAME, Ledger
from training.skips import Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLineage:
    """All that is known of one checkpoint."""

    found: Inspection
    partitions: Mapping[Partition, PartitionStatistics]
    """What became of the offsets; empty where the checkpoint may not be read."""
    skips: tuple[Skip, ...]
    """The ranges that orders have cut out."""


def lineage_of(store: CheckpointStore, number: int) -> CheckpointLineage:
    """Look one checkpoint up; a damaged one is told of as far as it can be."""
    found = store.look(number)
    ledger = Ledger()
    if found.condition is Condition.GOOD:
        ledger.restore(store.load(number, only={NAME})[NAME])
    return CheckpointLineage(found=found, partitions=ledger.statistics().partitions, skips=ledger.skips)
