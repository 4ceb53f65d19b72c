"""What lies on disk, of a project with one topic: by the number of the partition, and with the records' own ids."""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.app.tools.prove import checkpoint_reader
from millrace.app.tools.prove.checkpoint_reader import Array, Contents
from millrace.consumers.records import Partition
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.ledger import PartitionAccount
from millrace.training.ledger.offset_checksum import Evidence

__all__ = ["Array", "Contents", "Shelf", "Statement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(checkpoint_reader.Statement):
    """What one durable checkpoint says of its history."""

    @classmethod
    def of(cls, one: checkpoint_reader.Statement) -> "Statement":
        """The same, said as the tests ask."""
        return cls(
            manifest=one.manifest,
            testimonies=one.testimonies,
            accounts=one.accounts,
            skips=one.skips,
            arrays=one.arrays,
        )

    @property
    def seen(self) -> Mapping[int, Evidence]:
        """The witness, by the number of the partition."""
        return {at.number: evidence for at, evidence in self.testimonies.items()}

    @property
    def ledger(self) -> Mapping[int, PartitionAccount]:
        """The accounts, by the number of the partition."""
        return {at.number: account for at, account in self.accounts.items()}

    @property
    def ids(self) -> Mapping[int, tuple[int, int, int]]:
        """What the records themselves say: how many, the sum of their ids, the sum of the squares."""
        sums = next(value for key, value in self.arrays.items() if key.endswith("ids/sums"))
        return {partition: (int(row[0]), int(row[1]), int(row[2])) for partition, row in enumerate(sums)}

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition."""
        return {Partition.parse(name).number: offset for name, offset in self.manifest.positions.items()}


class Shelf(checkpoint_reader.Shelf):
    """The checkpoints of one name, read only."""

    def newest(self) -> Statement | None:
        """Return the checkpoint that a start would resume from, verified."""
        number = self.newest_number()
        return None if number is None else self.statement(number)

    def statement(self, number: int) -> Statement:
        """Return what this checkpoint states."""
        return Statement.of(super().statement(number))

    def part(self, number: int, name: str) -> PartState:
        """Return one part of this checkpoint."""
        return self._store.load(number)[name]
