"""The ledger: what became of every offset, by partition one integer (the next offset) and counters by reason.

Owns the positions. The trainer's thread settles a block when its call has returned, all of it or nothing, and copies
the ledger as a part of each checkpoint; other threads only read frozen statistics, under one lock. It is never full, as
it holds a few integers a partition, and it ends with the process: what lasts is its part.

The law: position - start = learnt + set aside + skipped by order + gaps + lost, by partition, at any time. To rewind is
to restore the ledger of an older checkpoint, counters and all, and to add the ranges that an order cuts out.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consumers.errors import DataLossError
from consumers.reasons import Reason
from consumers.records import Partition
from pipelines.blocks import BlockFacts, Span, Turn
from training.checkpoints.parts import PartState
from training.errors import CorruptError

NAME = "ledger"
Refused = Mapping[Partition, Mapping[Reason, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A range of offsets that an order has cut out of history."""

    order: str
    """Whose counter it moves: `rewind-17`."""
    partition: Partition
    start: int
    end: int
    """One past the last offset."""
    reason: str
    """Why, in the words of the one who ordered it."""

    def overlap(self, start: int, end: int) -> int:
        """How many offsets of [start, end) it cuts out."""
        return max(0, min(self.end, end) - max(self.start, start))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """What became of a partition's offsets, from its start to its position."""

    start: int
    """The offset at which this history begins."""
    position: int
    """The next offset: everything before it is settled."""
    learnt: int
    """Records that a training step has used."""
    set_aside: Mapping[Reason, int]
    """Records that could not be learnt, by reason."""
    skipped: Mapping[str, int]
    """Offsets cut out by order."""
    gaps: int
    """Offsets at which Kafka holds no record."""
    lost: int
    """Offsets that retention removed before they were read; anything but 0 is a loss."""

    @property
    def balanced(self) -> bool:
        """Whether every offset is accounted for exactly once."""
        parts = self.learnt + sum(self.set_aside.values()) + sum(self.skipped.values()) + self.gaps + self.lost
        return parts == self.position - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatistics:
    """A consistent view of the ledger between two calls."""

    incarnation: int
    partitions: Mapping[Partition, PartitionStatistics]
    settled_blocks: int
    """Blocks settled by this process."""
    dropped_blocks: int
    """Blocks of an older incarnation that arrived late and were not settled, in this process."""
    balanced: bool
    """Whether the law holds; False is a defect."""
    as_of: float
    """Monotonic clock."""


@dataclass(slots=True, kw_only=True)
class _Account:
    start: int
    position: int
    learnt: int = 0
    set_aside: dict[Reason, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    gaps: int = 0
    lost: int = 0

    def settle(self, span: Span, refused: Mapping[Reason, int]) -> None:
        self.position = span.end
        self.learnt += span.learnt - sum(refused.values())
        self.gaps += span.gaps
        self.lost += span.lost
        for reasons in (span.set_aside, refused):
            for reason, count in reasons.items():
                self.set_aside[reason] = self.set_aside.get(reason, 0) + count
        for order, count in span.skipped.items():
            self.skipped[order] = self.skipped.get(order, 0) + count

    def statistics(self) -> PartitionStatistics:
        return PartitionStatistics(
            start=self.start,
            position=self.position,
            learnt=self.learnt,
            set_aside=dict(self.set_aside),
            skipped=dict(self.skipped),
            gaps=self.gaps,
            lost=self.lost,
        )


class Ledger:
    """Moves when a call has returned. A part of every checkpoint, named `ledger`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = NAME
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[Partition, _Account] = {}
        self._skips: tuple[Skip, ...] = ()
        self._turn: Turn | None = None
        self._incarnation = 0
        self._settled_blocks = 0
        self._dropped_blocks = 0

    @property
    def incarnation(self) -> int:
        """The number of the present one."""
        return self._incarnation

    @property
    def skips(self) -> tuple[Skip, ...]:
        """All ranges cut out by order; no two of them overlap."""
        return self._skips

    @property
    def turn(self) -> Turn | None:
        """Where the strict rotation of deterministic mode stands."""
        return self._turn

    def begin_incarnation(self) -> int:
        """Begin the next one: what still arrives from those before is dropped."""
        with self._lock:
            self._incarnation += 1
            return self._incarnation

    def join(self, partition: Partition, start: int) -> None:
        """Take a new partition in, from this offset on."""
        with self._lock:
            if partition in self._accounts:
                raise DataLossError(f"{partition} is in the ledger already; it cannot begin anew at {start}")
            self._accounts[partition] = _Account(start=start, position=start)

    def add_skip(self, skip: Skip) -> tuple[Skip, ...]:
        """Cut a range out of what is ahead. Gives the pieces that no earlier order has cut out already."""
        with self._lock:
            account = self._accounts.get(skip.partition)
            if account is None or not account.position <= skip.start < skip.end:
                ahead = "is not in the ledger" if account is None else f"is settled up to {account.position}"
                raise DataLossError(
                    f"{skip.partition} [{skip.start}, {skip.end}) cannot be skipped: the partition {ahead}; "
                    "rewind to a checkpoint before the range, and give a range that is not empty"
                )
            pieces = tuple(_uncovered(skip, self._skips))
            self._skips = tuple(sorted((*self._skips, *pieces), key=lambda piece: (piece.partition, piece.start)))
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
            self._check(facts, refused)
            for span in facts.spans:
                self._accounts[span.partition].settle(span, refused.get(span.partition, {}))
            self._turn = facts.turn
            self._settled_blocks += 1
            return True

    def positions(self) -> dict[Partition, int]:
        """The next offset of each partition."""
        with self._lock:
            return {partition: account.position for partition, account in sorted(self._accounts.items())}

    def history_balanced(self) -> bool:
        """Whether the law holds in every partition."""
        return self.statistics().balanced

    def statistics(self) -> LedgerStatistics:
        """What became of everything so far."""
        with self._lock:
            partitions = {partition: account.statistics() for partition, account in sorted(self._accounts.items())}
            return LedgerStatistics(
                incarnation=self._incarnation,
                partitions=partitions,
                settled_blocks=self._settled_blocks,
                dropped_blocks=self._dropped_blocks,
                balanced=all(partition.balanced for partition in partitions.values()),
                as_of=self._clock(),
            )

    def snapshot(self) -> PartState:
        """Its state as a part."""
        with self._lock:
            return PartState(
                facts={
                    "incarnation": self._incarnation,
                    "partitions": {str(partition): _plain(account) for partition, account in self._accounts.items()},
                    "skips": [_plain_skip(skip) for skip in self._skips],
                    "turn": None if self._turn is None else [str(self._turn.partition), self._turn.taken],
                }
            )

    def restore(self, state: PartState) -> None:
        """Be as it was then, counters included. The incarnation never goes back. CorruptError leaves it as it is."""
        try:
            accounts = {Partition.parse(text): _account(facts) for text, facts in state.facts["partitions"].items()}
            skips = tuple(_skip(facts) for facts in state.facts["skips"])
            turn = state.facts.get("turn")
            turn = None if turn is None else Turn(Partition.parse(turn[0]), int(turn[1]))
            incarnation = int(state.facts["incarnation"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(
                f"the checkpoint's ledger cannot be read: {error}; restore another checkpoint"
            ) from error
        unbalanced = [partition for partition, account in accounts.items() if not account.statistics().balanced]
        if unbalanced:
            raise CorruptError(
                f"the checkpoint's ledger does not add up for {unbalanced[0]}; restore another checkpoint"
            )
        with self._lock:
            self._accounts, self._skips, self._turn = accounts, skips, turn
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
        cut = sum(skip.overlap(span.start, span.end) for skip in self._skips if skip.partition == span.partition)
        counts = [
            span.learnt,
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
            "does not add up": not span.balanced(),
            "refuses more rows than it has": sum(refused.values()) > span.learnt,
            "holds records that an order has cut out": span.learnt + sum(span.set_aside.values())
            > span.end - span.start - cut,
            "skips by an order that the ledger does not know": not self._known_skips(span),
        }
        return next((text for text, applies in complaints.items() if applies), None)

    def _known_skips(self, span: Span) -> bool:
        room: dict[str, int] = {}
        for skip in self._skips:
            if skip.partition == span.partition:
                room[skip.order] = room.get(skip.order, 0) + skip.overlap(span.start, span.end)
        return all(count <= room.get(order, 0) for order, count in span.skipped.items())


def _uncovered(skip: Skip, earlier: Sequence[Skip]) -> Iterator[Skip]:
    """The pieces of a range that no earlier one covers, ascending."""
    start = skip.start
    ranges = sorted((other.start, other.end) for other in earlier if other.partition == skip.partition)
    for covered_start, covered_end in ranges:
        if covered_start > start and start < skip.end:
            yield _piece(skip, start, min(covered_start, skip.end))
        start = max(start, covered_end)
    if start < skip.end:
        yield _piece(skip, start, skip.end)


def _piece(skip: Skip, start: int, end: int) -> Skip:
    return Skip(order=skip.order, partition=skip.partition, start=start, end=end, reason=skip.reason)


def _plain(account: _Account) -> dict[str, Any]:
    return {
        "start": account.start,
        "position": account.position,
        "learnt": account.learnt,
        "set_aside": {reason.value: count for reason, count in account.set_aside.items()},
        "skipped": dict(account.skipped),
        "gaps": account.gaps,
        "lost": account.lost,
    }


def _account(facts: Mapping[str, Any]) -> _Account:
    return _Account(
        start=int(facts["start"]),
        position=int(facts["position"]),
        learnt=int(facts["learnt"]),
        set_aside={Reason(reason): int(count) for reason, count in facts["set_aside"].items()},
        skipped={str(order): int(count) for order, count in facts["skipped"].items()},
        gaps=int(facts["gaps"]),
        lost=int(facts["lost"]),
    )


def _plain_skip(skip: Skip) -> dict[str, Any]:
    return {
        "order": skip.order,
        "partition": str(skip.partition),
        "start": skip.start,
        "end": skip.end,
        "reason": skip.reason,
    }


def _skip(facts: Mapping[str, Any]) -> Skip:
    return Skip(
        order=facts["order"],
        partition=Partition.parse(facts["partition"]),
        start=int(facts["start"]),
        end=int(facts["end"]),
        reason=facts["reason"],
    )
