"""What a service consists of: once it runs, and before.

Everything that other threads read is in one of two places: `Service.source` is the way to Kafka, `Service.running` is
the rest, built at once when the start has succeeded. Before that both are null objects with empty statistics, so no
reader has to ask whether they are there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from millrace.app.service.kafka_stream import NO_STREAM, StreamFactory, StreamStatistics
from millrace.consumers.dead_letters.letter import CountedOnly, DeadLetters
from millrace.training.recovery.crash_guard import CrashGuard
from millrace.training.telemetry.live_metrics import LiveMetrics


class AnyTrainer(Protocol):
    """The trainer of this process, alone or one of a group."""

    error: BaseException | None
    """The error that ended it."""

    def run(self) -> None:
        """Learn until the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRunning:
    """A service that is still starting."""

    dead_letters: DeadLetters = field(default_factory=CountedOnly)
    guard: CrashGuard = field(default_factory=CrashGuard)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def stream_statistics(self) -> StreamStatistics:
        """Return empty statistics."""
        return NO_STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service whose state is restored and whose trainer may learn."""

    dead_letters: DeadLetters
    guard: CrashGuard
    provenance: Mapping[str, Any]
    """What this process writes into the manifest of each checkpoint."""
    live: LiveMetrics
    streams: StreamFactory
    trainer: AnyTrainer

    def stream_statistics(self) -> StreamStatistics:
        """Return the statistics of the present stream; empty ones before the first."""
        return self.streams.statistics()
