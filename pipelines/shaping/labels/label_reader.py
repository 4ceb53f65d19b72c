"""The reader of labels: it follows the topics of labels as far as records ask for, and keeps labels until these came.

Owns the thread `labels`, a source of its own, and the hand-off between the two. The thread decodes what it takes,
moves the clocks, and puts the labels into the index. It reads no further ahead than a little behind what is asked for:
then the hand-off fills, which stops the source. Where a partition has no more and records wait for it, the thread asks
Kafka for the ends; a partition that has been read up to there counts as read up to that moment. A partition whose end
cannot be read, as of an open transaction, and one without a leader, are not quiet, so records wait for them.

In a group each worker has a reader. The chief's leads: what it finds at each label holds for all (`group_join.py`).

An error ends the reading, and is raised to those who ask how far it has come.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import (
    HandoffBroken,
    HandoffClosed,
    HandoffEmpty,
    HandoffEnded,
    MillraceError,
    NotYetError,
    UnreachableError,
)
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.handoff import Handoff, SendEnd
from millrace.consumers.records import Chunk, Int64s, Partition
from millrace.consumers.rounded import rounded_size
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.shaping.labels.clock import NEVER, LabelClocks
from millrace.pipelines.shaping.labels.index import Arrived, Bytes, LabelIndex
from millrace.pipelines.shaping.labels.keys import checks_of, hashes_of
from millrace.pipelines.shaping.labels.rules import JoinRules
from millrace.pipelines.shaping.labels.segments import LabelStretch, Segments
from millrace.pipelines.shaping.labels.silence import Silence, Verdict
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.slices import SkipRange, within

log = logging.getLogger(__name__)

T = TypeVar("T")
KEY = "key"
"""The feature of a label's record that is its key."""
_POLL_S = 0.05
_AHEAD_MS = 2_000
"""How far the clocks are moved beyond what is asked for, so that the next records need not wait."""
_ENDS_EVERY_S = 0.5
_IN_FLIGHT_MS = 1_000
"""How long a label may be on its way to Kafka: a quiet partition counts as read up to this long ago."""
_TURN_S = 0.5
_HANDOFF_BYTES = 16 * 2**20
_STOP_S = 5.0


class LabelSource(Protocol):
    """The part of a source that the reader uses."""

    def begin(
        self,
        incarnation: int,
        positions: Mapping[Partition, int],
        handoff: SendEnd,
        *,
        fingerprints: Mapping[Partition, Fingerprint | None],
    ) -> None:
        """End the fetching under way, and fetch from `positions` into `handoff`, if the partitions are the same."""
        ...

    def ends(self) -> tuple[Mapping[Partition, int], Mapping[Partition, int]]:
        """Return the end of what may be read of each partition, and of all of it."""
        ...

    def pause(self) -> None:
        """End the fetching under way."""
        ...


class Role(Enum):
    """How a reader reads beside others, which read the same partitions in other processes."""

    ALONE = "alone"
    LEADS = "leads"
    """It reads first, further ahead, and says how far; it alone counts silent partitions as read."""
    FOLLOWS = "follows"
    """It reads no further than the one that leads has said, and goes by what that one found."""
    OWN = "own"
    """It reads partitions that no other reads."""


class Kept(NamedTuple):
    """What the reader moves."""

    labels: LabelIndex
    clocks: LabelClocks
    silence: Silence
    segments: Segments | None = None
    """What keeps labels for the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where to read labels from."""

    bases: Mapping[Partition, tuple[int, int]]
    """The first offset of each partition that may be needed, and the time of its clock before it."""
    counted: Mapping[Partition, int] = field(default_factory=dict)
    """Everything before this offset of a partition is in the account already, unless it waits."""
    floor: int = NEVER
    """Labels before this time are needed no more."""
    refused: int = 0
    late: int = 0
    """Labels that were counted before."""
    fingerprints: Mapping[Partition, Fingerprint | None] = field(default_factory=dict)
    """The last label that was read of each partition, by which it is known again."""
    flags: Mapping[Partition, tuple[Int64s, Bytes]] = field(default_factory=dict)
    """What became until now of labels that are read again: their offsets, and flags of the index."""

    def of(self, numbers: Collection[int]) -> "Begin":
        """Return the same for the partitions of these numbers; raise MillraceError if one of them is not there."""
        if missing := set(numbers) - {partition.number for partition in self.bases}:
            raise MillraceError(
                f"labels.co_partitioned: no topic of labels has a partition {min(missing)}, but that of the records "
                "has; set it to false"
            )

        def mine(found: Mapping[Partition, T]) -> dict[Partition, T]:
            return {partition: one for partition, one in found.items() if partition.number in numbers}

        return replace(
            self,
            bases=mine(self.bases),
            counted=mine(self.counted),
            fingerprints=mine(self.fingerprints),
            flags=mine(self.flags),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """How far labels are read, at an instant."""

    positions: Mapping[Partition, int]
    clocks: Mapping[Partition, int]
    fingerprints: Mapping[Partition, Fingerprint | None]
    refused: int
    late: int
    whole: bool
    """Whether all labels that were counted before are there again."""


class LabelReader:
    """Reads labels into an index."""

    def __init__(
        self,
        rules: JoinRules,
        source: LabelSource,
        decoder: Decoder,
        kept: Kept,
        on_turn: Callable[[], None] | None,
        wall: Callable[[], float] = time.time,
        role: Role = Role.ALONE,
    ) -> None:
        """Read by these; the thread calls `on_turn` now and then, if there is one."""
        self.role = role
        # The others hear only now and then how far it is.
        self._ahead_ms = max(_AHEAD_MS, rules.within_ms) if role is Role.LEADS else _AHEAD_MS
        self._cuts: dict[Partition, int] = {}
        """Where one that follows stops, by partition."""
        self._rest: dict[Partition, Chunk] = {}
        """What it has fetched beyond that."""
        self._future: dict[Partition, Int64s] = {}
        """Offsets of labels whose time was still to come when they were first read, as the others hear of them."""
        self.index, self.clocks, self.silence, self.segments = kept
        self._source, self._decoder = source, decoder
        self._early_ms, self._usable_ms = rules.early_ms, rules.early_ms + rules.within_ms
        self._holds, self._max_bytes = rules.holds, rules.max_bytes
        self._on_turn, self._turn_due = on_turn, 0.0
        self._wall = wall
        self._turning = threading.Lock()
        self._begin = Begin(bases={})
        self._handoff: Handoff | None = None
        self._incarnation = 0
        self._numbers: dict[Partition, int] = {}
        self._fingerprints: dict[Partition, Fingerprint | None] = {}
        self._again = set[Partition]()
        """Partitions whose labels are still read again up to where they were counted before."""
        self._unread: Chunk | None = None
        """A chunk that cannot be decoded yet, as its schema is not known."""
        self._skips: Sequence[SkipRange] = ()
        self._wanted = NEVER
        self._ends_due = 0.0
        self._stopped = threading.Event()
        self._asked = threading.Event()
        self._error: BaseException | None = None
        self.refused = 0
        """Labels that could not be read, or have a time that is still to come."""
        self.late = 0
        """Labels that were too late for any record."""
        self.silent_ms = 0
        """For how long nothing has come, where records wait because of that."""
        self._thread = threading.Thread(target=self._run, name="labels", daemon=True)

    # Any thread.

    def begin(self, begin: Begin) -> None:
        """Forget the labels, and read from these offsets on."""
        with self._turning:
            if self._handoff is not None:
                self._handoff.close()
            self.index.clear()
            self._begin, self._wanted = begin, NEVER
            self.refused, self.late, self.silent_ms = begin.refused, begin.late, 0
            self._numbers = {partition: number for number, partition in enumerate(sorted(begin.bases))}
            for partition, (offsets, flags) in begin.flags.items():
                self.index.restore_flags(self._numbers[partition], offsets, flags)
            bases = {**begin.bases, **self._read_segments(begin)}
            self.clocks.begin(bases)
            self._incarnation += 1
            self._handoff = Handoff(capacity_bytes=_HANDOFF_BYTES, partitions=max(1, len(bases)))
            positions = {partition: offset for partition, (offset, _) in bases.items()}
            self._again = {one for one, end in begin.counted.items() if positions[one] < end}
            self._fingerprints, self._unread = dict(begin.fingerprints), None
            self._cuts, self._rest, self._future = {}, {}, {}
            self._source.begin(self._incarnation, positions, self._handoff, fingerprints=begin.fingerprints)
        if self._thread.ident is None:
            self._thread.start()

    def through(self, wanted: int) -> int:
        """Ask for all labels up to a time, and return up to when they are read. Raise what has ended the reading.

        After a restart nothing is read before all labels that were counted are there again, with what became of them.
        """
        if self._error is not None:
            raise self._error
        self.want(wanted)
        return NEVER if self._again else self.clocks.through()

    @property
    def whole(self) -> bool:
        """Whether all labels that were counted before are there again."""
        return not self._again

    @property
    def wanted(self) -> int:
        """The time up to which labels are asked for."""
        return self._wanted

    def want(self, wanted: int) -> None:
        """Ask for all labels up to a time."""
        if wanted > self._wanted:
            self._wanted = wanted
            self._asked.set()

    def from_future(self) -> Mapping[Partition, Int64s]:
        """Return the labels that one that leads has refused since it was last asked: their time was still to come."""
        with self._turning:
            found, self._future = self._future, {}
        return found

    def follow(self, cuts: Mapping[Partition, int], future: Mapping[Partition, Sequence[int]]) -> None:
        """Read on up to these offsets, and refuse these labels, as the one that leads did."""
        with self._turning:
            for partition, offsets in future.items():
                self._note_future(partition, np.array(offsets, np.int64))
            self.clocks.renew()
            self._cuts = dict(cuts)
        self._asked.set()

    def saved(self, floor: int) -> None:
        """Keep on disk what a checkpoint needs that is made now, and the one before it."""
        if self.segments is not None:
            self.segments.saved(floor)

    def skip(self, skips: Sequence[SkipRange]) -> None:
        """Cut these ranges of labels out of history, and none other: no record gets them."""
        with self._turning:
            if [*skips] == [*self._skips]:
                return
            self._skips, partitions = tuple(skips), {number: one for one, number in self._numbers.items()}
            self.index.skip(lambda number, offsets: within(skips, partitions[number], offsets) >= 0)

    def assume_absent(self) -> None:
        """Take the silence up to now for an absence of labels."""
        self.silence.assume(round(self._wall() * 1000))
        self.silent_ms = 0

    @contextmanager
    def still(self) -> Iterator[Still]:
        """Give how far labels are read; no label is read meanwhile."""
        with self._turning:
            yield Still(
                positions=self.clocks.positions(),
                clocks=self.clocks.at(),
                fingerprints=dict(self._fingerprints),
                refused=self.refused,
                late=self.late,
                whole=not self._again,
            )

    @property
    def numbers(self) -> Mapping[Partition, int]:
        """The number of each partition of labels in the index."""
        return self._numbers

    def stop(self) -> None:
        """End the reading, and wait for it for some seconds."""
        self._stopped.set()
        self._asked.set()
        if self._handoff is not None:
            self._handoff.close()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def _read_segments(self, begin: Begin) -> dict[Partition, tuple[int, int]]:
        """Take in the labels that are on disk; return where each of their partitions goes on, and its clock there."""
        found = dict[Partition, tuple[int, int]]()
        for piece in () if self.segments is None else self.segments.read(begin.bases, begin.counted, begin.floor):
            arrived = replace(piece.arrived, partition=self._numbers[piece.partition])
            self.silence.note(arrived.times, known=True)
            self.index.insert(replace(arrived, skipped=self._skipped(piece.partition, arrived.offsets)))
            found[piece.partition] = (piece.end, piece.clock)
        return found

    def _skipped(self, partition: Partition, offsets: Int64s) -> npt.NDArray[np.bool_] | None:
        return within(self._skips, partition, offsets) >= 0 if self._skips else None

    # The thread `labels`.

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                with self._turning:
                    done = self._step()
                if not done:
                    # A Kafka that is away is asked for many seconds, and nobody may wait for that.
                    self._look_at_ends()
                    self._asked.wait(_POLL_S)
                    self._asked.clear()
        except HandoffBroken as broken:
            self._error = broken.why or broken
        except Exception as error:
            if not isinstance(error, MillraceError):
                log.exception("reading labels failed")
            self._error = error

    def _step(self) -> bool:
        """Take one chunk. Return whether there was one."""
        if self._handoff is None:
            return False
        if self._on_turn is not None and (now := time.monotonic()) >= self._turn_due:
            self._turn_due = now + _TURN_S
            self._on_turn()
        try:
            chunk = self._unread or self._received(self._handoff)
            decoded = self._decoded(chunk)
        except (HandoffEmpty, HandoffClosed, HandoffEnded):
            return False
        except NotYetError as error:
            if self._unread is None:
                log.warning("labels wait: %s", error)
            self._unread = chunk
            return False
        self._unread = None
        self._take(chunk, decoded)
        return True

    def _decoded(self, chunk: Chunk) -> Decoded:
        return decode_chunk(chunk, self._decoder)

    def _received(self, handoff: Handoff) -> Chunk:
        """Return the next chunk; one that follows keeps what goes too far for later."""
        if (kept := self._next(self._rest)) is not None:
            chunk = self._rest.pop(kept)
        else:
            others = self._rest.keys()
            chunk = handoff.receive(0.0, lambda heads: self._next({p: heads[p] for p in heads.keys() - others}))
        if self.role is Role.FOLLOWS and (cut := self._cuts[chunk.partition]) < chunk.end:
            chunk, self._rest[chunk.partition] = chunk.split(cut)
        return chunk

    def _next(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """Choose the partition whose clock is behind the others', unless all are far enough and whole again."""
        at, until = self.clocks.at(), self._wanted + self._ahead_ms
        behind = [partition for partition in heads if at[partition] < until or partition in self._again]
        if self.role is Role.FOLLOWS:
            behind = [partition for partition in behind if heads[partition].start < self._cuts.get(partition, NEVER)]
        return min(behind, key=at.__getitem__, default=None)

    def _note_future(self, partition: Partition, offsets: Int64s) -> None:
        before = self._future.get(partition)
        self._future[partition] = offsets if before is None else np.concatenate([before, offsets])

    def _take(self, chunk: Chunk, decoded: Decoded) -> None:
        if chunk.fingerprint is not None:
            self._fingerprints[chunk.partition] = chunk.fingerprint
        counted = self._begin.counted.get(chunk.partition, NEVER)
        ahead = decoded.event_times > round(self._wall() * 1000) + self._early_ms
        if self.role is Role.FOLLOWS:
            ahead = np.isin(decoded.offsets, self._future.get(chunk.partition, ()))
        elif self.role is Role.LEADS and ahead.any():
            self._note_future(chunk.partition, decoded.offsets[ahead])
        self.refused += sum(one.offset >= counted for one in decoded.refused)
        self.refused += int((ahead & (decoded.offsets >= counted)).sum())
        good = np.flatnonzero(~ahead)
        times, offsets = decoded.event_times[good], decoded.offsets[good]
        new = offsets >= counted
        clocks = self.clocks.before(chunk.partition, offsets, times)
        self.silence.note(times[~new], known=True)
        self.silence.note(times[new])
        if new.any():
            self.silent_ms = 0
        late = clocks >= times + self._usable_ms
        self.late += int((late & new).sum())
        # What is in the account, and does not wait, is not needed again.
        good = good[~late & (new | (times >= self._begin.floor))]
        keys, places = decoded.features[KEY][good], np.searchsorted(offsets, decoded.offsets[good])
        arrived = Arrived(
            partition=self._numbers[chunk.partition],
            hashes=hashes_of(keys),
            checks=checks_of(keys),
            times=decoded.event_times[good],
            clocks=clocks[places],
            offsets=decoded.offsets[good],
            values={name: column[good] for name, column in decoded.labels.items()},
            skipped=self._skipped(chunk.partition, decoded.offsets[good]),
        )
        self.index.insert(arrived)
        # Last, as a record that goes by the clock has to find these labels.
        start = self.clocks.positions()[chunk.partition]
        self.clocks.read(chunk.partition, chunk.end, offsets, times)
        if self.segments is not None:
            self.segments.add(
                LabelStretch(
                    partition=chunk.partition,
                    start=start,
                    end=chunk.end,
                    clock=self.clocks.at()[chunk.partition],
                    floor=self._begin.floor if start < counted else NEVER,
                    arrived=arrived,
                )
            )
        if chunk.end >= counted:
            self._again.discard(chunk.partition)
        if (nbytes := self.index.nbytes()) > self._max_bytes:
            raise MillraceError(
                f"labels.max_bytes: {self.index.waiting():,} labels wait and take {rounded_size(nbytes)}, more than "
                f"{rounded_size(self._max_bytes)}; raise it, or lower labels.within"
            )

    def _look_at_ends(self) -> None:
        """Count a partition that has no more as read up to now, where records wait for it."""
        now = time.monotonic()
        at = self.clocks.at()
        if self.role is Role.FOLLOWS or not at or min(at.values()) >= self._wanted or now < self._ends_due:
            return
        asked = round(self._wall() * 1000) - _IN_FLIGHT_MS
        if asked < self._wanted:
            return
        self._ends_due, incarnation = now + _ENDS_EVERY_S, self._incarnation
        try:
            readable, ends = self._source.ends()
        except (UnreachableError, TimeoutError) as error:
            log.debug("the ends of the topics of labels are not known: %s", error)
            return
        with self._turning:
            if incarnation == self._incarnation:
                self._count_as_read(readable, ends, asked)

    def _count_as_read(self, readable: Mapping[Partition, int], ends: Mapping[Partition, int], asked: int) -> None:
        """Count partitions that have no more as read up to a time, unless the topics are silent for far too long."""
        at, positions = self.clocks.at(), self.clocks.positions()
        quiet = {
            partition: end
            for partition, end in readable.items()
            if positions.get(partition) == end == ends.get(partition) and at[partition] < self._wanted
        }
        if not quiet:
            return
        verdict = self.silence.judge(asked) if self._holds else Verdict(asked, None)
        # Labels that are there and not read yet, as after a restart, are no silence.
        unread = any(positions.get(partition, end) < end for partition, end in readable.items())
        self.silent_ms = 0 if unread else verdict.silent_ms or 0
        try:
            self.clocks.jump(quiet, min(asked, verdict.until))
        except OSError as error:
            log.warning("records wait for labels, as it cannot be written down that none came: %s", error.strerror)
