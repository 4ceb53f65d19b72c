"""The records of a proof that windows leave out: they give no row to learn, and are no loss.

Reads all records once more, as far as they are there, and makes their rows apart from any trainer.
"""

from app.service.sampling import read_between
from app.settings import Settings, to_decoder, to_windows
from app.settings.connection import kafka_options
from consumers.kafka.positions import Earliest, Latest
from consumers.kafka.source import KafkaSource
from consumers.records import Partition
from pipelines.decode import decode_chunk
from pipelines.shaping.windows import WindowStates

_CONNECT_S = 15.0


def left_out(settings: Settings) -> set[tuple[Partition, int]]:
    """Return the partition and offset of each record that gives no row."""
    layout = to_windows(settings.windows, settings.records)
    if layout is None:
        return set()
    shaper, decoder = WindowStates(layout).open(0, {}), to_decoder(settings.records)
    found = set[tuple[Partition, int]]()
    source = KafkaSource(kafka_options(settings.kafka))
    source.start(_CONNECT_S)
    try:
        chunks = read_between(source, 0, source.resolve_start(Earliest()), source.resolve_start(Latest()))
        for chunk in chunks:
            _, skipped = shaper.shape(decode_chunk(chunk, decoder))
            found |= {(chunk.partition, offset) for offset, _ in skipped}
    finally:
        source.stop(_CONNECT_S)
    return found
