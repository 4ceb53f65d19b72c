"""What became of every offset, one word an offset: what the lives are compared with."""

from dataclasses import dataclass, field

from millrace.consumers.records import Partition

LEARNT = "learnt"


@dataclass
class History:
    """What became of every offset, by partition, from its start to its position."""

    starts: dict[Partition, int] = field(default_factory=dict)
    fates: dict[Partition, list[str]] = field(default_factory=dict)

    def positions(self) -> dict[Partition, int]:
        return {partition: start + len(self.fates[partition]) for partition, start in self.starts.items()}

    def up_to(self, positions: dict[Partition, int]) -> "History":
        """Return a copy that ends there."""
        starts = {partition: self.starts[partition] for partition in positions}
        return History(starts, {p: self.fates[p][: at - starts[p]] for p, at in positions.items()})

    def places(self, *fates: str) -> list[tuple[Partition, int]]:
        """Return the offsets with one of these outcomes."""
        return [
            (partition, self.starts[partition] + at)
            for partition, all_fates in self.fates.items()
            for at, fate in enumerate(all_fates)
            if fate in fates
        ]
