"""consumers: from Kafka to the hand-off, and the types that travel on from there.

Owns everything that talks to Kafka. The names here are cheap to import; only `consumers.kafka.source` and
`consumers.dead_letters.producer` load the client library.
"""

from consumers.handoff import Handoff, HandoffStatistics, ReceiveEnd, SendEnd
from consumers.reasons import Reason
from consumers.records import Chunk, Partition

__all__ = ["Chunk", "Handoff", "HandoffStatistics", "Partition", "Reason", "ReceiveEnd", "SendEnd"]
