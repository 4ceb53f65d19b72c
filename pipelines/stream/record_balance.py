"""The balance: where the records are that the feed has received, by partition.

Owns counters under a lock. The feed's and the trainer's threads change them; any thread reads them.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.consumers.records import Partition


class Stage(StrEnum):
    """Where a record is; it is at one stage at a time."""

    DECODING = "decoding"
    ASSEMBLING = "assembling"
    UNDER_WAY = "under_way"
    HANDED = "handed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Records of one partition. The law: received = decoding + assembling + under_way + handed + discarded."""

    received: int
    """Taken from the hand-off, in this incarnation."""
    decoding: int
    assembling: int
    """Decoded, and in no closed block yet."""
    under_way: int
    """In blocks that the dataset has got, prefetched or not, and the trainer has not."""
    handed: int
    """In blocks that the trainer has got: learnt, set aside, skipped, or in its call."""
    discarded: int
    """Dropped by a stop; they will be read again."""

    @property
    def held(self) -> int:
        """Records between the hand-off and the trainer."""
        return self.decoding + self.assembling + self.under_way

    def balanced(self) -> bool:
        """Return whether every record is at exactly one stage."""
        return self.received == self.held + self.handed + self.discarded


class Balances:
    """The balance of each partition."""

    def __init__(self) -> None:
        # One lock for all counters, so that a snapshot finds every record in one place.
        self._lock = threading.Lock()
        self._received: Counter[Partition] = Counter()
        self._at: dict[Stage, Counter[Partition]] = {stage: Counter() for stage in Stage}

    def receive(self, partition: Partition, records: int) -> None:
        """Count records that were received; they are being decoded."""
        with self._lock:
            self._received[partition] += records
            self._at[Stage.DECODING][partition] += records

    def move(self, partition: Partition, records: int, source: Stage, target: Stage) -> None:
        """Move records from one stage to another."""
        with self._lock:
            self._at[source][partition] -= records
            self._at[target][partition] += records

    def ahead(self, partition: Partition) -> int:
        """Return how many records of a partition were received and are in no closed block yet."""
        with self._lock:
            return self._at[Stage.DECODING][partition] + self._at[Stage.ASSEMBLING][partition]

    def discard(self, *stages: Stage) -> None:
        """Count all records at these stages as discarded."""
        with self._lock:
            for stage in stages:
                self._at[Stage.DISCARDED].update(self._at[stage])
                self._at[stage].clear()

    def snapshot(self) -> Mapping[Partition, Balance]:
        """Return all balances at one instant."""
        with self._lock:
            return {
                partition: Balance(received=received, **{stage.value: self._at[stage][partition] for stage in Stage})
                for partition, received in self._received.items()
            }
