"""The assembler against plain lists: rows wait in one order, offsets are settled in another, and nothing is between.

Its chunks are made of one word an offset. What must hold of any block: it covers, of each partition, what follows the
block before; it holds exactly the rows of what it covers; it counts all else under its one name; and it closes when it
is full, when its time has run out, at the limit, or when nothing more comes, never otherwise. With whole batches it
holds no row of a batch that is not full.
"""

import math
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block, Span
from millrace.pipelines.stream.decode import Decoded, Refused
from millrace.pipelines.stream.row_order import RotationOptions
from tests.properties.effort import tried

SCHEMA = Schema(features=(Field(name="id", source="id", dtype="int64"),))
KNOWN = [Partition("clicks", number) for number in range(3)]
NEW = Partition("a-topic-that-sorts-first", 0)
ROW, GAP, LOST = "row", "gap", "lost"
BAD = {f"bad {reason.value}": reason for reason in (Reason.EMPTY, Reason.MALFORMED)}
KINDS = st.lists(st.sampled_from([ROW, ROW, ROW, ROW, *BAD, GAP]), min_size=1, max_size=20)
INCARNATION = 3


@dataclass(frozen=True)
class Cut:
    """A range that an order has cut out."""

    order: str
    partition: Partition
    start: int
    end: int


CUTS = (Cut("rewind-1", KNOWN[0], 4, 17), Cut("rewind-2", KNOWN[0], 9, 21), Cut("rewind-2", NEW, 0, 3))


def identity(partition: Partition, offset: int) -> int:
    return (KNOWN.index(partition) if partition in KNOWN else len(KNOWN)) * 1_000_000 + offset


def chunk(partition: Partition, start: int, kinds: Sequence[str], *, lost: int, now: float, **other: Any) -> Decoded:
    """Return what was decoded of a chunk that begins with this many lost offsets."""
    places = range(start + lost, start + lost + len(kinds))
    offsets = np.array([at for at, kind in zip(places, kinds, strict=True) if kind == ROW], np.int64)
    refused = [Refused(at, BAD[kind]) for at, kind in zip(places, kinds, strict=True) if kind in BAD]
    fields: dict[str, Any] = {
        "partition": partition,
        "incarnation": INCARNATION,
        "start": start,
        "end": start + lost + len(kinds),
        "fetched_at": now,
        "lost": lost,
        "offsets": offsets,
        "event_times": offsets,
        "features": {"id": offsets + identity(partition, 0)},
        "labels": {},
        "weights": None,
        "refused": tuple(refused),
        "nbytes": 16 * len(offsets),
    }
    return Decoded(**{**fields, **other})


class AssembleMachine(RuleBasedStateMachine):
    """Rows as they arrive."""

    rotates = False

    @initialize(
        batch_size=st.integers(1, 4),
        batches=st.integers(1, 3),
        shuffle=st.sampled_from([0, 0, 7]),
        max_wait=st.sampled_from([None, 1.0]),
        limit=st.sampled_from([None, None, None, 60]),
        share=st.integers(1, 4),
        cuts=st.booleans(),
        whole=st.booleans(),
    )
    def begin(self, *, share: int, cuts: bool, whole: bool, **options: Any) -> None:
        wait = None if self.rotates else options.pop("max_wait")
        self.share, self.cuts = share, CUTS if cuts else ()
        self.options = AssembleOptions(
            batch_size=options["batch_size"],
            batches_per_call=options["batches"],
            shuffle=options["shuffle"],
            limit=options["limit"],
            max_wait_s=wait,
            rotation=RotationOptions(share=share) if self.rotates else None,
            whole_batches=whole,
        )
        self.limit = options["limit"]
        if self.limit is not None:
            self.limit -= self.limit % self._unit()
        self.assembler = Assembler(SCHEMA, self.options, KNOWN, INCARNATION, self.cuts)
        self.now = 100.0
        self.log: dict[Partition, list[str]] = {}
        self.covered: dict[Partition, int] = {}
        self.fetched: deque[tuple[float, Partition, int, list[int]]] = deque()
        """Of each chunk that is not wholly covered: when it was fetched, where it ends, and its rows."""
        self.arrived: list[int] = []
        """Rows in the order of their chunks."""
        self.taken: list[int] = []
        self.dropped = self.blocks = 0
        self.flushed = False

    @property
    def joined(self) -> list[Partition]:
        return [NEW, *KNOWN] if not self.rotates else KNOWN

    @rule(data=st.data(), chunks=st.lists(st.tuples(KINDS, st.sampled_from([0, 0, 0, 2])), min_size=1, max_size=4))
    def add(self, data: st.DataObject, chunks: list[tuple[list[str], int]]) -> None:
        for kinds, lost in chunks:
            self._add(data.draw(st.sampled_from(self.joined)), kinds, lost)

    def _add(self, partition: Partition, kinds: list[str], lost: int) -> None:
        log = self.log.setdefault(partition, [])
        self.covered.setdefault(partition, 0)
        self.assembler.add(chunk(partition, len(log), kinds, lost=lost, now=self.now))
        start = len(log)
        log += [LOST] * lost + kinds
        rows = [identity(partition, at) for at in range(start, len(log)) if self._is_row(partition, at)]
        self.fetched.append((self.now, partition, len(log), rows))
        self.arrived += rows

    @rule(partition=st.sampled_from(KNOWN), kinds=KINDS, older=st.integers(1, 3))
    def drop_a_chunk_that_is_late(self, partition: Partition, kinds: list[str], older: int) -> None:
        self.assembler.add(chunk(partition, 77, kinds, lost=0, now=self.now, incarnation=INCARNATION - older))
        self.dropped += len(kinds)

    @precondition(lambda self: self.log)
    @rule(data=st.data(), by=st.sampled_from([-1, 1, 5]))
    def refuse_a_hole_or_a_repetition(self, data: st.DataObject, by: int) -> None:
        partition = data.draw(st.sampled_from(sorted(self.log)))
        with pytest.raises(ValueError, match="does not follow"):
            self.assembler.add(chunk(partition, len(self.log[partition]) + by, [ROW], lost=0, now=self.now))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(times=st.integers(1, 6))
    def take(self, times: int) -> None:
        for _ in range(times):
            due = self._due()
            block = self.assembler.take(self.now)
            if block is not None and not due and self.options.max_wait_s is None:
                # Offsets without a row, which wait for no others.
                assert block.facts.rows == 0
            elif block is None or not self.options.whole_batches:
                assert (block is not None) is due
            if block is not None:
                self._check(block)

    def teardown(self) -> None:
        if hasattr(self, "assembler") and sys.exc_info()[0] is None:
            self._flush()

    def _flush(self) -> None:
        """Take what is left: no more will come."""
        self.flushed = True
        while (block := self.assembler.take(self.now, flush=True)) is not None:
            self._check(block)
        if self.limit is None:
            held = len(self._order()) % self._unit()
            assert self.assembler.held_rows == held
            if not held:
                assert self.covered == {partition: len(log) for partition, log in self.log.items()}
                assert self.assembler.held_bytes == 0

    @invariant()
    def it_holds_what_it_was_given_and_has_not_given(self) -> None:
        if not hasattr(self, "assembler"):
            return
        assert self.assembler.held_rows == len(self.arrived) - len(self.taken)
        assert self.assembler.held_bytes >= 0
        assert self.assembler.dropped == self.dropped
        assert self.assembler.finished is (len(self.taken) == self.limit)
        assert self.assembler.full is (self._ahead() >= self._room() > 0)

    # The model.

    def _room(self) -> int:
        """Return how many rows the open block can take."""
        left = math.inf if self.limit is None else self.limit - len(self.taken)
        return int(min(self.options.capacity, left))

    def _ahead(self) -> int:
        """Return how many rows can be put into a block now."""
        ahead = len(self._order()) - len(self.taken)
        return ahead - ahead % self._unit()

    def _unit(self) -> int:
        """Return by how many rows a block grows."""
        return self.options.batch_size if self.options.whole_batches else 1

    def _order(self) -> list[int]:
        """Return all rows that were given, in the order in which they have to come, as far as it is known."""
        if not self.rotates:
            return self.arrived
        queues = {p: [at for at in self.arrived if at // 1_000_000 == KNOWN.index(p)] for p in KNOWN}
        return list(_rotated(list(queues.values()), self.share, to_the_end=self.flushed))

    def _due(self) -> bool:
        if self._room() == 0:
            return False
        if self._ahead() >= self._room():
            return True
        wait = self.options.max_wait_s
        return wait is not None and self.now >= self._oldest() + wait

    def _oldest(self) -> float:
        """Return when the oldest chunk was fetched of which something can be put into a block; infinity for none."""
        chunks = [entry for entry in self.fetched if self.covered[entry[1]] < entry[2]]
        if self.options.whole_batches:
            # Chunks without rows are left out: whether these wait depends on the rows before them.
            opened = self._order()[len(self.taken) :][: self._ahead()]
            chunks = [entry for entry in chunks if any(row in opened for row in entry[3])]
        return min((entry[0] for entry in chunks), default=math.inf)

    def _check(self, block: Block) -> None:
        room, facts = self._room(), block.facts
        assert (facts.number, facts.incarnation) == (self.blocks, INCARNATION)
        self.blocks += 1
        here = block.rows.offsets >= 0
        rows = block.rows.features["id"][here].tolist()
        assert facts.rows == len(rows) == min(room, self._ahead())
        rowless = not rows and (self.options.whole_batches or self.options.max_wait_s is None)
        assert facts.rows == room or self.flushed or rowless or self._due(), "it was closed for no reason"
        assert facts.rows % self._unit() == 0
        expected = self._order()[len(self.taken) : len(self.taken) + len(rows)]
        assert (sorted(rows) if self.options.shuffle else rows) == (
            sorted(expected) if self.options.shuffle else expected
        )
        self.taken += expected
        left = Counter(rows)
        for span in facts.spans:
            left -= Counter(self._check_span(span))
        assert not left, "rows of offsets that no span covers"
        assert facts.spans
        self._check_places(block, here)

    def _check_span(self, span: Span) -> list[int]:
        """Check the counts of a span against the rows that it covers."""
        assert span.start == self.covered[span.partition] < span.end <= len(self.log[span.partition])
        self.covered[span.partition] = span.end
        counts: Counter[str] = Counter()
        rows = []
        for at in range(span.start, span.end):
            kind, order = self.log[span.partition][at], self._cut(span.partition, at)
            cut = order is not None and kind not in (GAP, LOST)
            counts[f"skip {order}" if cut else kind] += 1
            if kind == ROW and not cut:
                rows.append(identity(span.partition, at))
        assert (span.learnt, span.gaps, span.lost) == (counts[ROW], counts[GAP], counts[LOST])
        assert {reason: counts[word] for word, reason in BAD.items() if counts[word]} == dict(span.set_aside)
        skipped = {word[5:]: count for word, count in counts.items() if word.startswith("skip ")}
        assert skipped == dict(span.skipped)
        return rows

    def _check_places(self, block: Block, here: Any) -> None:
        """Check that a row's partition and offset match its columns, and that absent rows weigh nothing."""
        names = {span.index: span.partition for span in block.facts.spans}
        places = zip(block.rows.partitions[here].tolist(), block.rows.offsets[here].tolist(), strict=True)
        own = [identity(names[index], offset) for index, offset in places]
        assert own == block.rows.features["id"][here].tolist()
        assert block.rows.weights[here].tolist() == [1.0] * len(own)
        assert not block.rows.weights[~here].any()
        assert set(block.rows.partitions[~here].tolist()) <= {-1}
        assert block.facts.batches == -(-len(own) // self.options.batch_size)

    def _is_row(self, partition: Partition, at: int) -> bool:
        return self.log[partition][at] == ROW and self._cut(partition, at) is None

    def _cut(self, partition: Partition, at: int) -> str | None:
        return next((cut.order for cut in self.cuts if cut.partition == partition and cut.start <= at < cut.end), None)


class RotationMachine(AssembleMachine):
    """Rows in strict rotation."""

    rotates = True


def _rotated(queues: list[list[int]], share: int, *, to_the_end: bool) -> Iterator[int]:
    """Return a share of each in turn, up to the first with too few rows, or to the end of all if no more will come."""
    left = [deque(queue) for queue in queues]
    while any(left):
        for queue in left:
            for _ in range(share):
                if queue:
                    yield queue.popleft()
                elif to_the_end:
                    break
                else:
                    return


TestAssembleMachine = AssembleMachine.TestCase
TestAssembleMachine.settings = tried(30)
TestRotationMachine = RotationMachine.TestCase
TestRotationMachine.settings = tried(30)
