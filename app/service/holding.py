"""What holds the learning without a command: a schema that cannot be read, a flood of bad records, or dead letters.

Owns the gates before the blocks and the thread that peeks behind that of floods. Any thread may ask; the trainer does
before each block. Two go on by themselves: the flood when good records come again, the letters when their topic takes
them. A schema waits for a person.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum

from millrace.app.service.flood_watch import FloodWatch
from millrace.app.service.schema_reports import schema_gate
from millrace.app.service.source_view import NotConnected, SourceView
from millrace.app.settings import Settings, to_decoder, to_flood
from millrace.consumers.dead_letters.letter import CountedOnly, DeadLetters
from millrace.consumers.kafka.options import KafkaOptions
from millrace.pipelines.gates.flood import FloodGate
from millrace.pipelines.gates.schema_gate import SchemaGate
from millrace.training.telemetry.events import ReportEvent, ignore_event

_REGISTRY_S = 2.0
"""How long a peek waits for the schema registry."""
STALLED_S = 10.0
"""Dead letters of which none is acknowledged for this long hold the learning."""


NO_LETTER_TAKEN = "has taken no dead letter for"
"""What a pause for dead letters is known by."""


class HeldBy(StrEnum):
    """What holds the learning."""

    SCHEMA = "schema"
    FLOOD = "flood"
    DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningHold:
    """Why the learning is held."""

    by: HeldBy
    why: str
    fix: str | None = None
    """What to do, where that depends on what is held."""


class Holding:
    """Everything that may hold the learning of one service."""

    def __init__(self, settings: Settings, report_event: ReportEvent = ignore_event) -> None:
        self._settings, self._report_event = settings, report_event
        self.schemas: SchemaGate | None = None
        """What holds the records of a schema back that cannot be read; None where there is no registry, or no start."""
        flood = to_flood(settings.records)
        self.gate = None if flood is None else FloodGate(flood)
        """What holds a flood back; None where none is."""
        self._source: SourceView = NotConnected()
        self._letters: DeadLetters = CountedOnly()

    def watch(self, source: SourceView, letters: DeadLetters, options: KafkaOptions, opened: ExitStack) -> None:
        """Follow the source and the dead letters of a start; the thread that this needs ends with `opened`."""
        self._source, self._letters = source, letters
        self.schemas = schema_gate(self._settings, self._report_event)
        if self.gate is not None:
            watch = FloodWatch(self.gate, options, to_decoder(self._settings.records, wait_s=_REGISTRY_S))
            watch.start()
            opened.callback(watch.stop)

    def now(self) -> LearningHold | None:
        """Return what holds the learning now; None where nothing does."""
        if self.schemas is not None and (schema := self.schemas.held) is not None:
            return LearningHold(by=HeldBy.SCHEMA, why=schema.why, fix=schema.fix)
        if self.gate is not None and (flood := self.gate.why) is not None:
            return LearningHold(by=HeldBy.FLOOD, why=flood)
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
        if self.schemas is not None:
            self.schemas.let_pass()
        if self.gate is not None:
            lags = self._source.statistics().lag.partitions
            self.gate.let_pass({partition: lag.end for partition, lag in lags.items() if lag.end is not None})
