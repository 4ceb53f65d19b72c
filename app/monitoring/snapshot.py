"""A snapshot: everything that the HTTP side knows of the service, read at one instant and frozen.

Owns the reading. Each part is read under its own lock, held for a moment, so it may be taken on any thread. The
positions are read before the ends of the partitions: learning meanwhile makes the lag too large, not negative.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.settings import Settings
from app.version import version
from consumers.dead_letters.letter import DeadLetterStatistics
from consumers.fingerprints import Fingerprint
from consumers.kafka.statistics import SourceStatistics
from consumers.records import Partition
from training.ledger.ledger import LedgerStatistics
from training.recovery.crash_guard import CrashLoop
from training.telemetry.meter import Meterings
from training.telemetry.phases import Phase, PhaseSnapshot
from training.trainer.board import Posting

if TYPE_CHECKING:
    from app.service.kafka_stream import StreamStatistics
    from app.service.service import Service

AT_WORK = frozenset({Phase.TRAINING, Phase.IDLE, Phase.SAVING, Phase.PAUSED})
"""The phases in which the state is restored and orders are obeyed soon."""
OVER = frozenset({Phase.STOPPING, Phase.ENDED, Phase.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The service at an instant. What is None is not there yet."""

    at: float
    """Seconds since 1970."""
    clock: float
    """Monotonic clock."""
    version: str
    settings: Settings
    phase: PhaseSnapshot
    alive: bool
    """Whether the trainer's thread runs."""
    meter: Meterings
    ledger: LedgerStatistics
    fingerprints: Mapping[Partition, Fingerprint | None]
    """The last record of the last chunk that was settled of each partition, where one is on file."""
    letters: DeadLetterStatistics
    source: SourceStatistics | None
    stream: "StreamStatistics | None"
    posting: Posting | None
    crash_loop: CrashLoop | None
    """What this start was paused for, and may go on in spite of."""
    provenance: Mapping[str, Any]
    """What this process writes down with its checkpoints; empty before the first."""

    @property
    def braked(self) -> CrashLoop | None:
        """What it is paused for to this moment, if it is a crash loop."""
        loop = self.crash_loop
        held = self.phase.phase is Phase.PAUSED and loop is not None and self.phase.reason == str(loop)
        return loop if held else None

    @property
    def name(self) -> str:
        """The config's name."""
        return self.settings.name


def take(service: "Service") -> Snapshot:
    """Read everything now."""
    parts = service.parts
    stream = parts.streams.current if parts.streams is not None else None
    return Snapshot(
        at=time.time(),
        clock=time.monotonic(),
        version=version(),
        settings=service.settings,
        phase=service.phases.snapshot(),
        alive=service.alive,
        meter=service.meter.snapshot(),
        ledger=service.ledger.statistics(),
        fingerprints=service.ledger.fingerprints(),
        letters=parts.dead_letters.statistics(),
        source=None if parts.source is None else parts.source.statistics(),
        stream=None if stream is None else stream.statistics(),
        posting=service.board.latest,
        crash_loop=parts.brake.loop,
        provenance={} if parts.saving is None else parts.saving.provenance,
    )
