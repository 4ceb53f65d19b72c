"""The records of a proof that shaping leaves out: they give no row to learn, and are no loss.

Reads all records once more, as far as they are there, and makes their rows apart from any trainer.
"""

from millrace.app.service.sampling import read_between
from millrace.app.settings import Settings, to_decoder
from millrace.app.settings.connection import kafka_options
from millrace.consumers.kafka.positions import Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.shaper import open_shapers
from millrace.pipelines.stream.decode import decode_chunk

_CONNECT_S = 15.0


def left_out(settings: Settings) -> set[tuple[Partition, int]]:
    """Return the partition and offset of each record that gives no row."""
    shape, decoder = open_shapers(settings.shapers(), 0, {}), to_decoder(settings.records)
    if shape is None:
        return set()
    found = set[tuple[Partition, int]]()
    source = KafkaSource(kafka_options(settings.kafka))
    source.start(_CONNECT_S)
    try:
        chunks = read_between(source, 0, source.resolve_start(Earliest()), source.resolve_start(Latest()))
        for chunk in chunks:
            _, skipped = shape(decode_chunk(chunk, decoder))
            found |= {(chunk.partition, offset) for offset, _ in skipped}
    finally:
        source.stop(_CONNECT_S)
    return found
