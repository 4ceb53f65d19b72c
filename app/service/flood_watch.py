"""Looks, while a flood of bad records is held back, whether good ones come again, and then lets the flood pass.

Owns the thread `flood` and, while it holds, a connection to Kafka of its own, which commits nothing. It decodes the
newest records of the partitions that are read here, as long as they lie behind what has gone on, and consumes none of
them. It reads again when the partitions have grown. When Kafka does not answer, it tries again.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

from millrace.app.service.sampling import read_between
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.positions import Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.pipelines.formats import Decoder
from millrace.pipelines.gates.flood import FloodGate, Judged, judged
from millrace.pipelines.stream.decode import decode_chunk

log = logging.getLogger(__name__)
PEEK_RECORDS = 200
"""How many of the newest records are looked at."""
_FEWEST_OF_EACH = 10
"""How many of each partition at least, where there are many."""
_ENOUGH = 20
"""Fewer records than this say nothing about those to come."""
_LOOK_EVERY_S, _PEEK_EVERY_S = 0.2, 1.0
_CONNECT_S, _READ_S, _STOP_S = 10.0, 2.0, 5.0


class FloodWatch:
    """The thread that peeks."""

    def __init__(self, gate: FloodGate, options: KafkaOptions, decoder: Decoder) -> None:
        # What retention removes meanwhile is no reason to look no more.
        self._gate, self._options, self._decoder = gate, replace(options, out_of_range="earliest"), decoder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch, and wait for it for some seconds."""
        self._stopped.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            if (why := self._gate.why) is not None:
                log.warning("a flood of bad records is held back: %s", why)
                self._watch()

    def _watch(self) -> None:
        """Peek until it is held no longer, by a connection that lasts for as long as Kafka answers."""
        while self._holds:
            source = KafkaSource(self._options)
            try:
                source.start(_CONNECT_S)
                self._peek_often(source)
            except Exception as error:  # noqa: BLE001 - nothing may end the watch: the flood would be held for ever
                why = str(error) if isinstance(error, MillraceError) else type(error).__name__
                log.warning("whether good records come again is not known: %s; it looks again", why)
            finally:
                source.stop(_STOP_S)
            self._stopped.wait(_PEEK_EVERY_S)

    @property
    def _holds(self) -> bool:
        return self._gate.why is not None and not self._stopped.is_set()

    def _peek_often(self, source: KafkaSource) -> None:
        peeked: Mapping[Partition, int] = {}
        while self._holds:
            ends = source.resolve_start(Latest())
            if ends != peeked:
                peeked = ends
                self._judge(source, ends)
            self._stopped.wait(_PEEK_EVERY_S)

    def _judge(self, source: KafkaSource, ends: Mapping[Partition, int]) -> None:
        """Look at the newest records; let what is held pass if few enough of them are bad."""
        chunks = [*self._newest(source, ends)]
        records, bad = sum(chunk.records for chunk in chunks), sum(chunk.bad for chunk in chunks)
        if records >= _ENOUGH and bad <= self._gate.options.share * records and self._gate.let_pass(ends):
            log.warning("good records come again, %d of the newest %d: the flood passes", records - bad, records)

    def _newest(self, source: KafkaSource, ends: Mapping[Partition, int]) -> Iterator[Judged]:
        taken = {partition: at for partition, at in self._gate.positions().items() if partition in ends}
        each = max(_FEWEST_OF_EACH, PEEK_RECORDS // max(1, len(taken)))
        first = source.resolve_start(Earliest())
        begin = {at: max(first.get(at, 0), position, ends[at] - each) for at, position in taken.items()}
        begin = {partition: offset for partition, offset in begin.items() if offset < ends[partition]}
        if not begin:
            return
        until = {partition: ends[partition] for partition in begin}
        for chunk in read_between(source, 0, begin, until, wait_s=_READ_S, counted=False):
            if self._stopped.is_set():
                return
            yield judged(decode_chunk(chunk, self._decoder))
