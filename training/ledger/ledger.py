"""The ledger: the outcome of every offset, by partition one integer (the next offset) and counters by reason.

Owns the positions. The trainer's thread settles a block when its call has returned, all of it or nothing, and copies
the ledger as a part of each checkpoint; other threads only read frozen statistics, under one lock. It is never full, as
it holds a few integers a partition, and it ends with the process: what lasts is its part.

The law: position - start = learnt + set aside + skipped + filtered + gaps + lost, by partition, at any time. To rewind
is to restore the ledger of an older checkpoint, counters included, under the interventions that were given since.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace.consumers.errors import DataLossError
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.pipelines.stream.offset_counts import OffsetCounts, by_shaping
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import CorruptError
from millrace.training.ledger.account import PartitionAccount
from millrace.training.ledger.interventions import Interventions, Skip, uncovered


@dataclass(frozen=True, slots=True)
class EventSpan:
    """The oldest and the newest event time, in milliseconds since 1970; both None if nothing has been learnt yet.

    Updated once a block. Records that a call refused count too, so the span may be a little too wide and is never too
    narrow.
    """

    oldest_ms: int | None = None
    newest_ms: int | None = None
    known: bool = True
    """False in a history that began with a version which kept no event times, and in all that follows it."""

    def widened(self, oldest_ms: int, newest_ms: int) -> "EventSpan":
        """Return the span, widened by the times of one more block."""
        if not self.known:
            return self
        return EventSpan(
            oldest_ms if self.oldest_ms is None else min(self.oldest_ms, oldest_ms),
            newest_ms if self.newest_ms is None else max(self.newest_ms, newest_ms),
        )

    def facts(self) -> Mapping[str, Any] | None:
        return {"oldest_ms": self.oldest_ms, "newest_ms": self.newest_ms} if self.known else None

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any] | None, *, learnt: int) -> "EventSpan":
        """Read a span from JSON. Without facts the span is known only where the history has learnt nothing."""
        if facts is None:
            return cls(known=learnt == 0)
        return cls(facts["oldest_ms"], facts["newest_ms"])


__all__ = ["NAME", "Ledger", "LedgerStatistics", "PartitionAccount", "Skip"]

NAME = "ledger"
Refused = Mapping[Partition, Mapping[Reason, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatistics:
    """A consistent view of the ledger between two calls."""

    incarnation: int
    partitions: Mapping[Partition, PartitionAccount]
    settled_blocks: int
    """Blocks settled by this process."""
    dropped_blocks: int
    """Blocks of an older incarnation that arrived late and were not settled, in this process."""
    balanced: bool
    """Whether the law holds; False is a defect."""
    orders: Interventions
    """All skips and the last rewind."""
    tally: OffsetCounts
    """What this process has settled; it never goes back."""
    event_span: EventSpan
    """The event times of what was learnt."""
    as_of: float
    """Monotonic clock."""


class Ledger:
    """The outcome of every offset. It moves when a call has returned, and is the part `ledger` of every checkpoint."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = NAME
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[Partition, PartitionAccount] = {}
        self._orders = Interventions()
        self._skips: tuple[Skip, ...] = ()
        self._event_span = EventSpan()
        self._incarnation = 0
        self._settled_blocks = 0
        self._dropped_blocks = 0
        self._tally = OffsetCounts()

    @property
    def incarnation(self) -> int:
        """The number of the present one."""
        return self._incarnation

    @property
    def skips(self) -> tuple[Skip, ...]:
        """All ranges cut out by interventions that hold; no two of them overlap."""
        return self._skips

    @property
    def tally(self) -> OffsetCounts:
        """What this process has settled; it never goes back."""
        return self._tally

    @property
    def orders(self) -> Interventions:
        """All skips and the last rewind."""
        return self._orders

    def begin_incarnation(self) -> int:
        """Begin the next incarnation, and return its number. Blocks of earlier ones are dropped from now on."""
        with self._lock:
            self._incarnation += 1
            return self._incarnation

    def raise_incarnation(self, number: int) -> None:
        """Raise the incarnation to this number, unless it is higher already; the number never goes back."""
        with self._lock:
            self._incarnation = max(self._incarnation, number)

    def join(self, partition: Partition, start: int) -> None:
        """Add a partition that begins at this offset; DataLossError where the ledger has it."""
        with self._lock:
            if partition in self._accounts:
                raise DataLossError(f"{partition} is in the ledger already; it cannot begin again at {start}")
            self._accounts[partition] = PartitionAccount(start=start, position=start)

    def join_if_new(self, partition: Partition, start: int) -> bool:
        """Add a partition that begins at this offset, unless the ledger has it. Returns whether it was new."""
        with self._lock:
            new = partition not in self._accounts
            if new:
                self._accounts[partition] = PartitionAccount(start=start, position=start)
            return new

    def restart_partition(self, partition: Partition, start: int) -> None:
        """Close the account of a partition whose topic was created again, and open one from this offset on.

        Skips of the earlier topic do not apply to the new one.
        """
        with self._lock:
            self._accounts[partition] = self._accounts[partition].restarted(start)
            self._skips = self._holding()

    def follow(self, orders: Interventions) -> None:
        """Replace the interventions; what they skip before the positions is history already."""
        with self._lock:
            self._orders = orders
            self._skips = self._holding()

    def skip_beside(self, skip: Skip) -> None:
        """Keep that a range is cut out of what is read beside the records that are learnt."""
        if skip.start >= skip.end:
            raise DataLossError(f"{skip.partition} [{skip.start}, {skip.end}) cannot be skipped: it is empty")
        with self._lock:
            self._orders = self._orders.with_skip(skip)
            self._skips = self._holding()

    def skip(self, skip: Skip) -> tuple[Skip, ...]:
        """Cut out a range after the position. Returns the pieces that no earlier intervention has cut out."""
        with self._lock:
            account = self._accounts.get(skip.partition)
            if account is None or not account.position <= skip.start < skip.end:
                ahead = "is not in the ledger" if account is None else f"is settled up to {account.position}"
                raise DataLossError(
                    f"{skip.partition} [{skip.start}, {skip.end}) cannot be skipped: the partition {ahead}; "
                    "rewind to a checkpoint before the range, and give a range that is not empty"
                )
            # Bound to the present topic: the offsets of one that is created again are other records.
            skip = replace(skip, topic=len(account.former))
            pieces = tuple(uncovered(skip, self._skips))
            self._orders = self._orders.with_skip(skip)
            self._skips = self._holding()
            return pieces

    def settle(self, facts: BlockFacts, refused: Refused | None = None) -> bool:
        """Account for a block whose call has returned: all of it, or nothing.

        `refused` moves rows from learnt to set aside, where the call found them unfit. False for a block of an older
        incarnation, which is dropped and counted. DataLossError for a block that does not continue the ledger.
        """
        refused = refused or {}
        with self._lock:
            if facts.incarnation < self._incarnation:
                self._dropped_blocks += 1
                return False
            # All of the block is checked before the first account moves, so a block that is refused changes nothing.
            self._check(facts, refused)
            for span in facts.spans:
                counts = span.refusing(refused[span.partition]) if span.partition in refused else span
                account = self._accounts[span.partition]
                self._accounts[span.partition] = account.moved_to(span.end, counts, span.fingerprint)
                self._tally += counts
            if facts.rows:
                self._event_span = self._event_span.widened(facts.oldest_ms, facts.newest_ms)
            self._settled_blocks += 1
            return True

    def positions(self) -> dict[Partition, int]:
        with self._lock:
            return {partition: account.position for partition, account in sorted(self._accounts.items())}

    def fingerprints(self) -> dict[Partition, Fingerprint | None]:
        """Return the fingerprint of each settled partition, or None where none was recorded."""
        with self._lock:
            accounts = sorted(self._accounts.items())
            return {partition: account.fingerprint for partition, account in accounts if account.settled}

    def learnt(self) -> dict[Partition, int]:
        """Return the number of learnt records of each partition, earlier topics of the same name included."""
        # The witness, with which this is compared, does not know that a topic was created again.
        return {
            partition: sum(history.learnt for history in account.histories)
            for partition, account in self.statistics().partitions.items()
        }

    def history_balanced(self) -> bool:
        """Return whether the law holds in every partition."""
        return self.statistics().balanced

    def statistics(self) -> LedgerStatistics:
        """Return a consistent view of the outcome of all offsets so far."""
        with self._lock:
            partitions = dict(sorted(self._accounts.items()))
            return LedgerStatistics(
                incarnation=self._incarnation,
                partitions=partitions,
                settled_blocks=self._settled_blocks,
                dropped_blocks=self._dropped_blocks,
                balanced=all(partition.balanced for partition in partitions.values()),
                orders=self._orders,
                tally=self._tally,
                event_span=self._event_span,
                as_of=self._clock(),
            )

    def snapshot(self) -> PartState:
        """Return the ledger's state as a part."""
        with self._lock:
            return PartState(
                facts={
                    "incarnation": self._incarnation,
                    "partitions": {
                        str(partition): account.all_facts() for partition, account in self._accounts.items()
                    },
                    "event_span": self._event_span.facts(),
                    **self._orders.facts(),
                }
            )

    def restore(self, state: PartState) -> None:
        """Take a saved state, counters included; the incarnation never goes back. CorruptError changes nothing."""
        # Everything is read and checked before the lock: other threads never see a ledger that is half restored.
        try:
            accounts = {
                Partition.parse(text): PartitionAccount.of_facts(facts)
                for text, facts in state.facts["partitions"].items()
            }
            orders = Interventions.of_facts(state.facts)
            learnt = sum(account.learnt for account in accounts.values())
            event_span = EventSpan.of_facts(state.facts.get("event_span"), learnt=learnt)
            incarnation = int(state.facts["incarnation"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(
                f"the checkpoint's ledger cannot be read: {error}; restore another checkpoint"
            ) from error
        unbalanced = [partition for partition, account in accounts.items() if not account.balanced]
        if unbalanced:
            raise CorruptError(
                f"the checkpoint's ledger does not add up for {unbalanced[0]}; restore another checkpoint"
            )
        with self._lock:
            self._accounts, self._event_span = accounts, event_span
            self._orders = orders
            self._skips = self._holding()
            self._incarnation = max(self._incarnation, incarnation)

    def _check(self, facts: BlockFacts, refused: Refused) -> None:
        if facts.incarnation > self._incarnation:
            raise DataLossError(
                f"block {facts.number} is of incarnation {facts.incarnation}, after {self._incarnation}"
            )
        for span in facts.spans:
            problem = self._problem(span, refused.get(span.partition, {}))
            if problem is not None:
                where = f"block {facts.number}, {span.partition} [{span.start}, {span.end})"
                raise DataLossError(f"{where} {problem}: settling it would lose or repeat records")
        partitions = [span.partition for span in facts.spans]
        if len(set(partitions)) < len(partitions) or not refused.keys() <= set(partitions):
            raise DataLossError(f"block {facts.number} names a partition twice, or refuses rows of one that it lacks")

    def _problem(self, span: Span, refused: Mapping[Reason, int]) -> str | None:
        account = self._accounts.get(span.partition)
        # How many offsets of the span are cut out, by intervention.
        cut: dict[str, int] = {}
        for skip in self._skips:
            if skip.partition == span.partition:
                cut[skip.order] = cut.get(skip.order, 0) + skip.overlap(span.start, span.end)
        by_order = {order: count for order, count in span.skipped.items() if not by_shaping(order)}
        counts = [
            span.learnt,
            span.filtered,
            span.gaps,
            span.lost,
            *span.set_aside.values(),
            *span.skipped.values(),
            *refused.values(),
        ]
        complaints = {
            "is of a partition that has not joined": account is None,
            "does not begin at the partition's position": account is not None and span.start != account.position,
            "ends before it begins": span.end < span.start,
            "counts less than nothing": min(counts) < 0,
            "does not add up": not span.balanced,
            "refuses more rows than it has": sum(refused.values()) > span.learnt,
            "holds records that an order has cut out": span.records - sum(by_order.values())
            > span.end - span.start - sum(cut.values()),
            "skips more than was ordered": any(count > cut.get(order, 0) for order, count in by_order.items()),
        }
        return next((text for text, applies in complaints.items() if applies), None)

    def _holding(self) -> tuple[Skip, ...]:
        """Return the ranges that hold for the present topics."""
        topics = {partition: len(account.former) for partition, account in self._accounts.items()}
        return tuple(skip for skip in self._orders.standing if topics.get(skip.partition, 0) == skip.topic)


def positions_of(state: PartState) -> dict[Partition, int]:
    """Return the next offset of each partition of a copy of the ledger."""
    accounts = {Partition.parse(text): facts for text, facts in state.facts["partitions"].items()}
    return {partition: int(facts["position"]) for partition, facts in sorted(accounts.items())}
