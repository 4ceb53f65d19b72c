"""What holds the learning without a command: a schema that cannot be read, a flood of bad records, or dead letters.

Owns the gates before the blocks and the thread that peeks behind that of floods. Any thread may ask; the trainer does
before each block. Two go on by themselves: the flood when good records come again, the letters when their topic takes
them. A schema waits for a person.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from millrace.app.service.kept_sample import read_between
from millrace.app.settings import Settings, to_decoder
from millrace.app.settings.sections.registry import cache_of
from millrace.consumers.dead_letters.letter import CountedOnly, DeadLetters
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.positions import Earliest, Latest, Start
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.kafka.statistics import SourceMeter, SourceStatistics
from millrace.consumers.records import Partition
from millrace.pipelines.formats import Decoder
from millrace.pipelines.gates.flood import FloodGate, Judged, judged
from millrace.pipelines.gates.gate import Gate, HeldBy, LearningHold
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.gates.schema_gate import NewSchema, SchemaGate
from millrace.pipelines.registry.schemas import KeptSchemas
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity, ignore_event

log = logging.getLogger(__name__)

_REGISTRY_S = 2.0
"""How long a peek waits for the schema registry."""
STALLED_S = 10.0
"""Dead letters of which none is acknowledged for this long hold the learning."""


NO_LETTER_TAKEN = "has taken no dead letter for"
"""What a pause for dead letters is known by."""
PEEK_RECORDS = 200
"""How many of the newest records are looked at."""
_FEWEST_OF_EACH = 10
"""How many of each partition at least, where there are many."""
_ENOUGH = 20
"""Fewer records than this say nothing about those to come."""
_LOOK_EVERY_S, _PEEK_EVERY_S = 0.2, 1.0
_CONNECT_S, _READ_S, _STOP_S = 10.0, 2.0, 5.0


class SourceView(Protocol):
    """The part of a source that other threads may use."""

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


class FloodWatch:
    """Looks, while a flood of bad records is held back, whether good ones come again, and then lets the flood pass.

    Owns the thread `flood` and, while it holds, a connection to Kafka of its own, which commits nothing. It decodes the
    newest records of the partitions that are read here, as long as they lie behind what has gone on, and consumes none
    of them. It reads again when the partitions have grown. When Kafka does not answer, it tries again.
    """

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
                peeked: Mapping[Partition, int] = {}
                while self._holds:
                    ends = source.resolve_start(Latest())
                    if ends != peeked:
                        peeked = ends
                        self._judge(source, ends)
                    self._stopped.wait(_PEEK_EVERY_S)
            except Exception as error:  # noqa: BLE001 - nothing may end the watch: the flood would be held for ever
                why = str(error) if isinstance(error, MillraceError) else type(error).__name__
                log.warning("whether good records come again is not known: %s; it looks again", why)
            finally:
                source.stop(_STOP_S)
            self._stopped.wait(_PEEK_EVERY_S)

    @property
    def _holds(self) -> bool:
        return self._gate.why is not None and not self._stopped.is_set()

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


class Holding:
    """Everything that may hold the learning of one service."""

    def __init__(self, settings: Settings, report_event: ReportEvent = ignore_event) -> None:
        self._settings, self._report_event = settings, report_event
        above = settings.records.dead_letters.pause_above
        self.gates: tuple[Gate, ...] = () if above is None else (FloodGate(above),)
        """What may hold decoded chunks back, in the sequence in which it is asked."""
        self._source: SourceView = NotConnected()
        self._letters: DeadLetters = CountedOnly()

    def watch(self, source: SourceView, letters: DeadLetters, options: KafkaOptions, opened: ExitStack) -> None:
        """Follow the source and the dead letters of a start; the thread that this needs ends with `opened`."""
        self._source, self._letters = source, letters
        for gate in self.gates:
            if isinstance(gate, FloodGate):
                watch = FloodWatch(gate, options, to_decoder(self._settings.records, wait_s=_REGISTRY_S))
                watch.start()
                opened.callback(watch.stop)
        # The schema first: a flood of one that cannot be read is held by its name, and does not go on by itself.
        self.gates = (*schema_gates(self._settings, self._report_event), *self.gates)

    def now(self) -> LearningHold | None:
        """Return what holds the learning now; None where nothing does."""
        for gate in self.gates:
            if (held := gate.held()) is not None:
                return held
        if (stalled_s := self._letters.stalled_s) > STALLED_S:
            topic = self._settings.records.dead_letters.topic
            why = f"the topic {topic} {NO_LETTER_TAKEN} {stalled_s:.0f} s"
            return LearningHold(by=HeldBy.DEAD_LETTERS, why=why)
        return None

    @property
    def reason(self) -> str | None:
        """Why the learning has to wait; None where it need not."""
        held = self.now()
        return None if held is None else held.why

    def let_pass(self, *, assume_absent: bool = False) -> None:
        """Let a schema's records pass, and a flood as far as its partitions reach now; on demand, what has no label."""
        lags = self._source.statistics().lag.partitions
        ends = {partition: lag.end for partition, lag in lags.items() if lag.end is not None}
        for gate in self.gates:
            gate.let_pass(ends)
            if assume_absent and isinstance(gate, LabelGate):
                gate.assume_absent()


def schema_gates(settings: Settings, report_event: ReportEvent) -> tuple[Gate, ...]:
    """Return the gate of schemas; none if no registry says which schema wrote a record."""
    registry = settings.records.registry
    if registry is None:
        return ()

    def report(new: NewSchema) -> None:
        fit, before, changes = new.fit, new.before, new.changes
        graver = any(field.unfit is not None for field in fit.fields.values())
        since = "" if before is None else f" after schema {before.number}"
        where = f"first at {new.partition}:{new.offset}"
        text = f"Schema {fit.number} ({fit.name}) is on the topic{since}, {where}: {new.sentence}"
        log.info("%s", text)
        report_event(
            EventKind.NEW_SCHEMA,
            f"{text}.",
            Severity.WARNING if graver else Severity.INFO,
            schema=fit.number,
            before=None if before is None else before.number,
            changes=changes,
            partition=str(new.partition),
            offset=new.offset,
        )

    return (SchemaGate(KeptSchemas(cache_of(registry)), report, holds=registry.on_incompatible == "pause"),)
