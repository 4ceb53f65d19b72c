"""The part of Kafka's source that other threads may use, and its null object. Loads no TensorFlow."""

from collections.abc import Mapping
from typing import Protocol

from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.positions import Start
from millrace.consumers.kafka.statistics import SourceMeter, SourceStatistics
from millrace.consumers.records import Partition


class SourceView(Protocol):
    """The readable side of a source."""

    def statistics(self) -> SourceStatistics:
        """Return what the source has fetched and what it knows of Kafka."""
        ...

    def resolve_start(self, start: Start) -> Mapping[Partition, int]:
        """Return the offset of each partition that `start` stands for now; asks Kafka and waits for the answer."""
        ...


class NotConnected:
    """The source of a service that has not connected yet."""

    def statistics(self) -> SourceStatistics:
        """Return empty statistics."""
        return SourceMeter().snapshot(loop_lag_p99_s=0.0)

    def resolve_start(self, start: Start) -> Mapping[Partition, int]:
        """Raise MillraceError."""
        raise MillraceError(f"cannot resolve {start} before the service has connected to Kafka")
