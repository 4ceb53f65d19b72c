"""A few records of a topic, read as a start reads them, for inspection: nothing is committed.

Blocks the caller, who has started the source and stops it.
"""

from collections.abc import Iterator, Mapping

from millrace.consumers.errors import HandoffEmpty, HandoffEnded
from millrace.consumers.handoff import Handoff, ReceiveEnd
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Partition

Positions = Mapping[Partition, int]
_READ_S = 15.0
_HELD_BYTES = 64 * 1024 * 1024


def read_between(
    source: KafkaSource,
    incarnation: int,
    start: Positions,
    until: Positions,
    *,
    wait_s: float = _READ_S,
    counted: bool = True,
) -> Iterator[Chunk]:
    """Yield the records between two positions; stop early where Kafka sends none for some seconds.

    Unless `counted`, the statistics of the source leave them out.
    """
    handoff = Handoff(capacity_bytes=_HELD_BYTES, partitions=max(1, len(start)))
    source.begin(incarnation, start, handoff, until, counted=counted)
    receiving: ReceiveEnd = handoff
    try:
        while True:
            chunk = receiving.receive(wait_s)
            if len(chunk):
                yield chunk
    except (HandoffEnded, HandoffEmpty):
        return
    finally:
        source.pause()
        receiving.close()
