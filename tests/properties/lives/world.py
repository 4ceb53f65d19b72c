"""What outlives a process: Kafka, the disk, the time, and what was told to others."""

from dataclasses import dataclass, field
from pathlib import Path

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.assemble import AssembleOptions
from millrace.pipelines.stream.row_order import RotationOptions
from millrace.training.checkpoints import Manifest
from tests.properties.lives.log import Log


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """What outlives a process: Kafka, the disk, what was told to others; and the settings."""

    root: Path
    options: AssembleOptions
    rotation: RotationOptions | None = None
    room: int = 1 << 20
    log: Log = field(default_factory=Log)
    clock: Clock = field(default_factory=Clock)
    letters: dict[tuple[Partition, int], Reason] = field(default_factory=dict)
    """What the dead letters' topic has."""
    told: list[Manifest] = field(default_factory=list)
    """Whose positions may have been committed."""
