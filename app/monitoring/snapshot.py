"""A snapshot: everything that the HTTP side knows of the service, read at one instant and frozen.

Owns the reading, and the sums over where the records are between Kafka and the ledger. Each part is read under its own
lock, held for a moment, so it may be taken on any thread. The positions are read before the ends of the partitions:
learning meanwhile makes the lag too large, not negative.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.app.service.holding import NO_LETTER_TAKEN
from millrace.app.service.lost_history import LostHistory
from millrace.app.settings import Settings
from millrace.app.version import version
from millrace.consumers.dead_letters.letter import DeadLetterStatistics
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.kafka.statistics import SourceStatistics
from millrace.consumers.metric import Reported, reported_by
from millrace.consumers.records import Partition
from millrace.pipelines.gates.gate import HeldBy, LearningHold
from millrace.training.ledger.ledger import LedgerStatistics
from millrace.training.recovery.crash_guard import CrashLoop
from millrace.training.telemetry.group_report import GroupReport
from millrace.training.telemetry.meter import Meterings
from millrace.training.telemetry.phases import Phase, PhaseSnapshot
from millrace.training.trainer.board import Posting

if TYPE_CHECKING:
    from millrace.app.service.kafka_stream import StreamStatistics
    from millrace.app.service.service import Service

AT_WORK = frozenset({Phase.TRAINING, Phase.IDLE, Phase.SAVING, Phase.PAUSED})
"""The phases in which the state is restored and commands are obeyed soon."""
OVER = frozenset({Phase.STOPPING, Phase.ENDED, Phase.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The service at an instant. Statistics of what is not there yet are empty."""

    at: float
    """Seconds since 1970."""
    clock: float
    """Monotonic clock."""
    version: str
    settings: Settings
    phase: PhaseSnapshot
    alive: bool
    """Whether the trainer's thread runs."""
    meter: Meterings
    ledger: LedgerStatistics
    fingerprints: Mapping[Partition, Fingerprint | None]
    """The last record of the last chunk that was settled of each partition, where one is on file."""
    letters: DeadLetterStatistics
    source: SourceStatistics
    stream: "StreamStatistics"
    posting: Posting | None
    crash_loop: CrashLoop | None
    """What this start was paused for; it stays here after somebody has resumed the training."""
    guard_holds: bool
    """Whether nobody has resumed the training since, or paused it for another reason."""
    held: LearningHold | None
    """What holds the learning without a command; None if nothing does."""
    lost_history: LostHistory | None
    """What shows that this name has learnt before, where this start has found no checkpoint."""
    provenance: Mapping[str, Any]
    """What this process writes down with its checkpoints; empty before the first."""
    figures: Mapping[str, Reported]
    """What the parts of the service and of the trainer's state report, by name."""
    group: GroupReport | None
    """The group of which this process is a worker; None if it learns alone."""

    @property
    def fetching_began(self) -> bool:
        """Whether a stream was opened; before that, counters of what is fetched mean nothing and are left out."""
        return self.source.incarnation is not None

    @property
    def braked(self) -> CrashLoop | None:
        """The crash loop that the trainer is paused for now; None if it is not paused, or for another reason."""
        return self.crash_loop if self.guard_holds and self.phase.phase is Phase.PAUSED else None

    @property
    def waits_for_letters(self) -> bool:
        """Whether it is paused until its dead letters are taken, and not by a person: it then goes on by itself."""
        by_letters = self.held is not None and self.held.by is HeldBy.DEAD_LETTERS
        # By the words, because the seconds in them go on while nothing asks the trainer.
        return by_letters and self.phase.phase is Phase.PAUSED and NO_LETTER_TAKEN in (self.phase.reason or "")

    @property
    def follows(self) -> GroupReport | None:
        """The group, where another worker is its chief, who saves, commits and takes commands; else None."""
        return None if self.group is None or self.group.is_chief else self.group

    @property
    def name(self) -> str:
        """The config's name."""
        return self.settings.name


def take(service: "Service") -> Snapshot:
    """Read everything now; safe on any thread."""
    running, posting = service.running, service.board.latest
    return Snapshot(
        at=time.time(),
        clock=time.monotonic(),
        version=version(),
        settings=service.settings,
        phase=service.phases.snapshot(),
        alive=service.alive,
        meter=service.meter.snapshot(),
        ledger=service.ledger.statistics(),
        fingerprints=service.ledger.fingerprints(),
        letters=running.dead_letters.statistics(),
        source=service.source.statistics(),
        stream=running.stream_statistics(),
        posting=posting,
        crash_loop=running.guard.loop,
        guard_holds=running.guard.holds,
        held=service.holding.now(),
        lost_history=service.lost_history,
        provenance=running.provenance,
        figures={**reported_by((*vars(service).values(), *service.senders)), **(posting.figures if posting else {})},
        group=service.board.group,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFlow:
    """Of the present incarnation. fetched = handed + held + discarded."""

    fetched: int
    handed: int
    held: int
    discarded: int

    @property
    def balanced(self) -> bool:
        """Whether each record is in one place."""
        adds_up = self.fetched == self.handed + self.held + self.discarded
        return adds_up and min(self.fetched, self.handed, self.held, self.discarded) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFlow:
    """Of all incarnations of this process. fetched = learnt + set aside + skipped + filtered + held + discarded."""

    fetched: int
    held: int
    """What the trainer has got and not settled yet, included."""
    discarded: int


def flow_of(snapshot: Snapshot) -> RecordFlow | None:
    """Return where the records of the present incarnation are; None before the first."""
    return _flow(snapshot.stream) if snapshot.fetching_began else None


def balanced(snapshot: Snapshot) -> bool:
    """Return whether both sums hold: of the history, by the ledger, and of what is on its way."""
    return snapshot.ledger.balanced and _flow(snapshot.stream).balanced


def process_flow_of(snapshot: Snapshot) -> ProcessFlow:
    """Return where the records of this process are; fetched and discarded only grow."""
    flow, before = _flow(snapshot.stream), snapshot.stream.before
    fetched = before.fetched + flow.fetched
    discarded = before.fetched - before.settled + flow.discarded
    in_call = flow.handed - (snapshot.ledger.tally.records - before.settled)
    return ProcessFlow(fetched=fetched, held=flow.held + in_call, discarded=discarded)


def _flow(stream: "StreamStatistics") -> RecordFlow:
    """Add the parts up; what has left the hand-off and not arrived at the feed counts as held."""
    feed, handoff = stream.feed, stream.handoff
    balances = feed.balances.values()
    between = handoff.received.records - feed.stale - sum(balance.received for balance in balances)
    return RecordFlow(
        fetched=handoff.offered.records,
        handed=sum(balance.handed for balance in balances),
        held=handoff.queued.records + between + sum(balance.held for balance in balances),
        discarded=handoff.discarded.records + feed.stale + sum(balance.discarded for balance in balances),
    )
