"""The flow: where the records are between Kafka and the ledger. Pure; runs anywhere."""

from dataclasses import dataclass

from millrace.app.monitoring.snapshot import Snapshot
from millrace.app.service.kafka_stream import StreamStatistics


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
    """Of all incarnations of this process. fetched = learnt + set aside + skipped + held + discarded."""

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


def _flow(stream: StreamStatistics) -> RecordFlow:
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
