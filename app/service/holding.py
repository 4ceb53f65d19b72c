"""What holds the learning without a command: a schema that cannot be read, a flood of bad records, or dead letters.

Owns the gates before the blocks and the thread that peeks behind that of floods. Any thread may ask; the trainer does
before each block. Two go on by themselves: the flood when good records come again, the letters when their topic takes
them. A schema waits for a person.
"""

import logging
from contextlib import ExitStack

from millrace.app.service.flood_watch import FloodWatch
from millrace.app.service.source_view import NotConnected, SourceView
from millrace.app.settings import Settings, to_decoder
from millrace.app.settings.sections.registry import cache_of
from millrace.consumers.dead_letters.letter import CountedOnly, DeadLetters
from millrace.consumers.kafka.options import KafkaOptions
from millrace.pipelines.gates.flood import FloodGate
from millrace.pipelines.gates.gate import Gate, HeldBy, LearningHold
from millrace.pipelines.gates.schema_gate import NewSchema, SchemaGate
from millrace.pipelines.registry.schemas import KeptSchemas
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity, ignore_event

log = logging.getLogger(__name__)

_REGISTRY_S = 2.0
"""How long a peek waits for the schema registry."""
STALLED_S = 10.0
"""Dead letters of which none is acknowledged for this long hold the learning."""


NO_LETTER_TAKEN = "has taken no dead letter for"
"""What a pause for dead letters is known by."""


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

    def let_pass(self) -> None:
        """Let a schema's records pass, and a flood as far as its partitions reach now."""
        lags = self._source.statistics().lag.partitions
        ends = {partition: lag.end for partition, lag in lags.items() if lag.end is not None}
        for gate in self.gates:
            gate.let_pass(ends)


def schema_gates(settings: Settings, report_event: ReportEvent) -> tuple[Gate, ...]:
    """Return the gate of schemas; none if no registry says which schema wrote a record."""
    registry = settings.records.registry
    if registry is None:
        return ()

    def report(new: NewSchema) -> None:
        _tell(report_event, new)

    return (SchemaGate(KeptSchemas(cache_of(registry)), report, holds=registry.on_incompatible == "pause"),)


def _tell(report_event: ReportEvent, new: NewSchema) -> None:
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
