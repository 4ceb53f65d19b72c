"""consumers: from Kafka to the hand-off, and the types that travel on from there.

Owns everything that talks to Kafka. The names here are cheap to import; only `consumers.kafka.source` and
`consumers.dead_letters.producer` load the client library.
"""

from millrace.consumers.handoff import Handoff, HandoffStatistics, ReceiveEnd, SendEnd
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition

__all__ = ["Chunk", "Handoff", "HandoffStatistics", "Partition", "Reason", "ReceiveEnd", "SendEnd"]
