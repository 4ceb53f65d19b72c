"""The join: each record that is due gets the labels that came for its key, and both get their account.

Owns what is remembered of each partition of records, as followed states, and with it what became of the labels. Records
are joined on the generator's thread; labels are marked as used on the thread that follows what is settled, and leave
the index when no record that is not settled may come for them.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import MillraceError
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.metric import Reported
from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.schema import PRESENT, Column
from millrace.pipelines.shaping.followed_states import FollowedShaper, Taken
from millrace.pipelines.shaping.labels.clock import NEVER, Jumps, jumped_at
from millrace.pipelines.shaping.labels.delays import BUCKETS, buckets_of, quantiles
from millrace.pipelines.shaping.labels.figures import JoinFigures
from millrace.pipelines.shaping.labels.index import LabelIndex, Marks, UInt32s
from millrace.pipelines.shaping.labels.keys import checks_of, hashes_of
from millrace.pipelines.shaping.labels.label_reader import Begin, LabelReader, Role
from millrace.pipelines.shaping.labels.rules import NAME, JoinRules, Match
from millrace.pipelines.shaping.labels.silence import Silence
from millrace.pipelines.stream.assemble import Shape
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped, only

_HASH, _CHECK, _TIME, _OUTCOME, _DELAY = "hash", "check", "time", "outcome", "delay"
_NONE = 255
"""The bucket of the delay of a record without a label."""
OUTCOMES = ("labelled", "absent", "dropped", "too_old")
_LABELLED, _ABSENT, _DROPPED, _TOO_OLD = range(4)


def times_of(decoded: Decoded, early_ms: int) -> Int64s:
    """Return the times of a chunk's records: none is later than when it came, and as much as clocks may differ."""
    fetched = round((time.time() - time.monotonic() + decoded.fetched_at) * 1000)
    came = decoded.event_times if decoded.timestamps is None else decoded.timestamps
    times: Int64s = np.minimum(decoded.event_times, np.minimum(came, fetched) + early_ms)
    return times


class RecordState:
    """What is remembered of one partition of records."""

    def __init__(self, index: LabelIndex) -> None:
        self._index = index
        self.newest = NEVER
        """The latest time of a record."""
        self.counts = np.zeros(len(OUTCOMES), np.int64)
        self.delays = np.zeros(BUCKETS, np.int64)
        """How many labels came how late."""

    def follow(self, taken: Taken) -> None:
        """Take records in that are joined and not settled."""
        times = taken.columns[_TIME]
        if len(times):
            self.newest = max(self.newest, int(times.max()))
            self.counts += np.bincount(taken.columns[_OUTCOME], minlength=len(OUTCOMES))
            late = taken.columns[_DELAY]
            self.delays += np.bincount(late[late != _NONE], minlength=BUCKETS)

    def take(self, taken: Taken) -> None:
        """Take settled records in, which settles the labels that they were given."""
        self.follow(taken)
        joined = taken.columns[_OUTCOME] != _TOO_OLD
        columns = (taken.columns[name][joined] for name in (_HASH, _CHECK, _TIME))
        self._index.settle(*columns)

    def copy(self) -> "RecordState":
        """Return a copy; the labels are the same."""
        other = RecordState(self._index)
        other.newest, other.counts, other.delays = self.newest, self.counts.copy(), self.delays.copy()
        return other


class Ends(NamedTuple):
    """Where the partitions of records end, as far as that is known."""

    offsets: Mapping[Partition, int]
    asked_ms: int
    """When that was asked, milliseconds since 1970: what comes behind these ends came later."""


UNKNOWN = Ends({}, NEVER)
"""That nothing is known of where they end."""


class Connected(NamedTuple):
    """What brings the labels."""

    reader: LabelReader
    jumps: Jumps
    """Where it is written down that a partition of records counted as read up to a moment."""
    first: Callable[[], Mapping[Partition, tuple[int, int]]]
    """Returns where to read the labels from if nothing is remembered."""
    ends: Callable[[], Ends]
    """Returns where the partitions of records end: of one that is settled up to there only what is new comes."""
    rivals: LabelReader | None = None
    """With `match`, what reads all records ahead."""
    first_rivals: Callable[[], Mapping[Partition, tuple[int, int]]] = dict
    """Returns where to read them from if nothing is remembered."""

    @property
    def whole(self) -> bool:
        """Whether all that was read before is there again."""
        return self.reader.whole and (self.rivals is None or self.rivals.whole)


class LabelShaper(FollowedShaper[RecordState]):
    """Gives records their labels."""

    name = NAME
    setting = "labels"

    def __init__(self, rules: JoinRules) -> None:
        self.rules = rules
        self._fields = {field.name: field for field in rules.fields}
        self._absent = rules.absent
        self.index = LabelIndex(
            {name: (field.numpy_dtype, field.shape) for name, field in self._fields.items()},
            take=rules.take,
            early_ms=rules.early_ms,
            within_ms=rules.within_ms,
            match=rules.match,
        )
        self.silence = Silence(within_ms=rules.within_ms)
        self._connected: Connected | None = None
        self._loaded: Begin | None = None
        self._restored: tuple[dict[str, Column], dict[str, Any]] = {}, {}
        """What became of labels as it was loaded: arrays and facts."""
        self._rivals: Begin | None = None
        """Where to read rivals again."""
        self._begun = False
        self._lock = threading.Lock()
        """No label leaves the index while a record is joined."""
        self._floor = NEVER
        """Labels before this time have left the index."""
        self._promised = NEVER
        """Labels before this time may leave it, as no record needs them."""
        self._joined = dict[Partition, int]()
        """Up to where the records of each partition are joined, in this incarnation."""
        self._jumped = dict[Partition, tuple[Int64s, Int64s]]()
        """Offsets from which on records of a partition are too old before a time, and the times."""
        self._expired: Counter[str] = Counter()
        super().__init__(lambda: RecordState(self.index))

    def connect(self, connected: Connected) -> None:
        """Have labels come; without, as where a few records are only looked at, each record has those of no label."""
        self._connected = connected

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> Shape:
        """Begin an incarnation at what is settled, and read labels from where they may be needed."""
        if self._connected is not None:
            if self._begun and self._loaded is None:
                self._load_labels(*self.saved())
            begin = self._loaded if self._loaded is not None else Begin(bases=self._connected.first())
            if self._connected.reader.role is Role.OWN:
                begin = begin.of({partition.number for partition in positions})
            with self._lock:
                self._loaded, self._begun = None, True
                self._floor = self._promised = begin.floor
                self._joined, self._jumped = dict(positions), {}
            self._connected.reader.begin(begin)
            if self._connected.rivals is not None:
                self._connected.rivals.begin(self._rivals or Begin(bases=self._connected.first_rivals()))
        return super().open(incarnation, positions, at_once=at_once)

    def made(self, decoded: Decoded, state: RecordState) -> tuple[Decoded, list[Skipped], Taken]:
        """Return the rows with their labels, and the records that are not learnt for want of one."""
        if self._connected is None:
            return self._unjoined(decoded), [], self._taken(decoded, *_nothing(len(decoded)))
        times, hashes = times_of(decoded, self.rules.early_ms), hashes_of(_keys(decoded))
        checks = np.zeros(len(decoded), np.uint32)

        def asked(rows: Int64s) -> UInt32s:
            """Return the checks of some records, which are settled by them later."""
            checks[rows] = checks_of(_keys(decoded)[rows])
            return checks[rows]

        with self._lock:
            old = self._too_old(self._connected.jumps, decoded, state, times)
            joined = self.index.match(hashes, asked, times)
            self._joined[decoded.partition] = decoded.end
        labelled = joined.labelled & ~old
        values = {name: column[~old[joined.labelled]] for name, column in joined.values.items()}
        drops = any(value is None for value in self._absent.values())
        outcome = np.full(len(decoded), _DROPPED if drops else _ABSENT, np.uint8)
        outcome[labelled], outcome[old] = _LABELLED, _TOO_OLD
        delays = np.full(len(decoded), _NONE, np.uint8)
        delays[labelled] = buckets_of(joined.delays)[~old[joined.labelled]]
        taken = self._taken(decoded, hashes, checks, times, outcome, delays)
        state.follow(taken)
        labels = dict(decoded.labels)
        for name, field in self._fields.items():
            absent = self._absent[name]
            column = np.empty((len(decoded), *field.shape), field.numpy_dtype)
            column[:] = np.zeros((), field.numpy_dtype) if absent is None else absent
            column[labelled] = values[name]
            labels[name] = column
            if field.masked:
                labels[name + PRESENT] = labelled
        # What waited for its label is as new as if it came now.
        rows = replace(decoded, labels=labels, fetched_at=max(decoded.fetched_at, time.monotonic()))
        kept = outcome <= _ABSENT
        if kept.all():
            return rows, [], taken
        return only(rows, np.flatnonzero(kept)), [(int(offset), NAME) for offset in decoded.offsets[~kept]], taken

    def _too_old(self, jumps: Jumps, decoded: Decoded, state: RecordState, times: Int64s) -> npt.NDArray[np.bool_]:
        """Return which records are too old: by those before them, or as their partition was quiet for too long.

        What goes by how far this process is gets written down first, so that the same ones are too old when they are
        learnt again.
        """
        partition, early = decoded.partition, self.rules.early_ms
        if partition not in self._jumped:
            self._jumped[partition] = jumps.of(partition)
        before = np.maximum.accumulate(np.append(np.array([state.newest], np.int64), times[:-1]))[: len(times)]
        reached = np.maximum(before, jumped_at(self._jumped[partition], decoded.offsets))
        gone = np.flatnonzero((times >= reached - early) & (times - early < self._promised))
        if len(gone) and not jumps.closed:
            try:
                jumps.add({partition: (int(decoded.offsets[gone[0]]), self._promised + 2 * early)})
            except OSError as error:
                raise MillraceError(
                    f"records of {partition} are too old for their labels, which cannot be written down: "
                    f"{error.strerror}"
                ) from error
            self._jumped[partition] = jumps.of(partition)
            reached = np.maximum(before, jumped_at(self._jumped[partition], decoded.offsets))
        return times < reached - early

    @staticmethod
    def _taken(decoded: Decoded, *columns: Column) -> Taken:
        names = (_HASH, _CHECK, _TIME, _OUTCOME, _DELAY)
        return Taken(decoded.end, decoded.offsets, dict(zip(names, columns, strict=True)))

    def _unjoined(self, decoded: Decoded) -> Decoded:
        labels = dict(decoded.labels)
        for name, field in self._fields.items():
            column = np.empty((len(decoded), *field.shape), field.numpy_dtype)
            column[:] = np.zeros((), field.numpy_dtype) if self._absent[name] is None else self._absent[name]
            labels[name] = column
            if field.masked:
                labels[name + PRESENT] = np.zeros(len(decoded), np.bool_)
        return replace(decoded, labels=labels)

    def depends_on(self) -> dict[str, Any]:
        """Return what the account depends on."""
        rules = self.rules
        return {
            "topics": sorted(rules.topics),
            "join": list(rules.key),
            "take": rules.take.value,
            "times_ms": [rules.within_ms, rules.early_ms],
            **({} if rules.match is Match.ALL else {"match": rules.match.value}),
        }

    def written(self, state: RecordState) -> tuple[Mapping[str, Column], dict[str, Any]]:
        """Return a state as facts."""
        counts = dict(zip(OUTCOMES, state.counts.tolist(), strict=True))
        delays = np.trim_zeros(state.delays, "b").tolist()
        return {}, {"newest": None if state.newest == NEVER else state.newest, "counts": counts, "delays": delays}

    def read(
        self, state: RecordState, facts: Mapping[str, Any], column: Callable[[str, Sequence[int]], Column]
    ) -> None:
        """Take over what `written` has returned."""
        del column
        state.newest = NEVER if facts["newest"] is None else int(facts["newest"])
        state.counts = np.array([facts["counts"][name] for name in OUTCOMES], np.int64)
        delays = np.array(facts.get("delays", ()), np.int64)
        state.delays[: len(delays)] = delays

    def begins_anew(self, *, others: bool) -> str | None:
        """Return a warning that labels are counted from here on."""
        return "labels: the checkpoint was made with other labels, so they are counted from here on" if others else None

    def saved(self) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return what is remembered of records, and what became of the labels."""
        arrays, facts = super().saved()
        if self._connected is None:
            return arrays, facts
        if not (self._begun or self._loaded):
            # Number 0 says where the labels of its records begin: later that would be somewhere else.
            about = _beginning(self._connected.first(), self.silence)
            if self._connected.rivals is not None:
                about["rivals"] = _unread(self._connected.first_rivals())
            self._load_labels({}, {NAME: about})
        role = self._connected.reader.role
        with self._connected.reader.still() as read:
            if self._loaded or not self._connected.whole:
                # Nothing is settled before all counted labels are there again, so what was loaded still holds.
                restored, about = self._restored
                # The chief of a group has what was loaded, and what has become of it since.
                if role is Role.OWN and not self._loaded:
                    names = {str(partition) for partition in self._connected.reader.numbers}
                    partitions = {name: one for name, one in about["partitions"].items() if name in names}
                    about = {**about, "partitions": partitions, "jumps": self._connected.jumps.untold()}
                    restored = {name: one for name, one in restored.items() if name.split("/")[1] in names}
                return {**arrays, **(restored if role is not Role.FOLLOWS else {})}, {**facts, NAME: about}
            if role is Role.ALONE:
                self.expire()
            self._connected.reader.saved(self._floor)
            flags, numbers = self.index.flags(), self._connected.reader.numbers
            bases, partitions = self.index.bases(), dict[str, Any]()
            for partition, number in numbers.items():
                position, clock = read.positions[partition], read.clocks[partition]
                base, before = bases.get(number) or (position, clock)
                known = read.fingerprints.get(partition)
                partitions[str(partition)] = {
                    "base": base,
                    "clock": before,
                    "position": position,
                    "waiting": self.index.waiting_of(number),
                    "fingerprint": None if known is None else list(known),
                }
                if number in flags:
                    offsets, marks = flags[number]
                    arrays |= {f"{NAME}/{partition}/offsets": offsets, f"{NAME}/{partition}/flags": marks}
            facts[NAME] = {
                "floor": self._floor,
                "expired": dict(self._expired),
                "refused": read.refused,
                "late": read.late,
                "waiting": self.index.waiting(),
                "silence": self.silence.saved(),
                "partitions": partitions,
                **_rivals_read(self._connected.rivals),
            }
            if role is Role.OWN:
                # What this worker has found since it last met the others, which the chief keeps on disk.
                facts[NAME]["jumps"] = self._connected.jumps.untold()
        return arrays, facts

    def load(self, arrays: Mapping[str, Column], facts: Mapping[str, Any]) -> None:
        """Take over what `saved` has returned; of something else, or of nothing, begin anew."""
        super().load(arrays, facts)
        known = self.depends_on()
        self._begun, self._loaded, self._rivals, self._expired = False, None, None, Counter()
        if NAME in facts and {name: facts[name] for name in known} == known:
            self._load_labels(arrays, facts)

    def _load_labels(self, arrays: Mapping[str, Column], facts: Mapping[str, Any]) -> None:
        about = facts[NAME]
        self._restored = {name: one for name, one in arrays.items() if name.startswith(f"{NAME}/")}, about
        named = {Partition.parse(name): one for name, one in about["partitions"].items()}
        self._expired = Counter(about["expired"])
        if "rivals" in about:
            self._rivals = _begin_of(about["rivals"], int(about["floor"]))
        self.silence.load(about["silence"])
        self._loaded = replace(
            _begin_of(about["partitions"], int(about["floor"])),
            refused=int(about["refused"]),
            late=int(about["late"]),
            flags={
                partition: (
                    arrays[f"{NAME}/{partition}/offsets"].astype(np.int64),
                    arrays[f"{NAME}/{partition}/flags"].astype(np.uint8),
                )
                for partition in named
                if f"{NAME}/{partition}/offsets" in arrays
            },
        )

    def count_anew(self) -> None:
        """Count labels from here on alone, as the chief of the group has those of before."""
        self._expired = Counter()
        self._restored = self._restored[0], {**self._restored[1], "expired": {}, "refused": 0, "late": 0}
        if self._loaded is not None:
            self._loaded = replace(self._loaded, refused=0, late=0)

    @property
    def connected(self) -> Connected | None:
        """What brings the labels; None if none come."""
        return self._connected

    @property
    def floor(self) -> int:
        """The time before which labels have left the index."""
        return self._floor

    def expire(self) -> None:
        """Let labels go for which no record comes any more."""
        if (floor := self.reached()) is not None and floor > self._floor:
            self.let_go(floor)

    def let_go(self, floor: int, others: Sequence[Marks] = ()) -> None:
        """Let labels before a time go; `others` are the flags that they have at other workers."""
        with self._lock:
            self._floor = floor
            self._expired += self.index.expire(floor, others)
            if self.index.rivals is not None:
                self.index.rivals.expire(floor)

    def reached(self) -> int | None:
        """Return the time before which no record needs a label any more; None if no records are read here.

        From now on a record that would need one is too old.
        """
        assert self._connected is not None
        # Both before what is settled is looked at, as that may reach the end meanwhile.
        ends, asked = self._connected.ends()
        quiet = min(self._connected.reader.clocks.through(), asked) - self.rules.within_ms
        with self._lock:
            settled = self._followed.each(lambda state, position: (state.newest, position))
            if not settled:
                return None

            def of(partition: Partition, newest: int, position: int) -> int:
                """Return the time before which nothing comes of a partition, but for what is too old."""
                at_end = position >= ends.get(partition, position + 1) and position >= self._joined[partition]
                return max(newest, quiet) if at_end else newest

            floor = min(of(partition, *one) for partition, one in settled.items()) - 2 * self.rules.early_ms
            self._promised = max(self._promised, floor)
            return floor

    def figures(self) -> Reported:
        """Return the account of records and labels."""
        settled = self._followed.each(lambda state, _: (state.counts.copy(), state.delays.copy())).values()
        counts = sum((one for one, _ in settled), np.zeros(len(OUTCOMES), np.int64))
        delays = sum((one for _, one in settled), np.zeros(BUCKETS, np.int64))
        reader = None if self._connected is None else self._connected.reader
        through = NEVER if reader is None else reader.clocks.through()
        now = round(time.time() * 1000)
        counted = Counter() if reader is None or reader.role is Role.FOLLOWS else self._expired
        labels = {name: counted.get(name, 0) for name in ("used", "duplicate", "late", "unused", "skipped")}
        refused = 0
        if reader is not None and reader.role is not Role.FOLLOWS:
            labels["late"] += reader.late
            refused = reader.refused
        return JoinFigures(
            records=dict(zip(OUTCOMES, counts.tolist(), strict=True)),
            labels={**labels, "refused": refused},
            delays_s=quantiles(delays),
            waiting=self.index.waiting(),
            bytes=self.index.nbytes(),
            behind_s=None if through == NEVER else max(0, now - through) / 1000,
            silent_s=0.0 if reader is None else reader.silent_ms / 1000,
            patience_s=self.silence.patience_ms(now) / 1000,
        )


def _beginning(bases: Mapping[Partition, tuple[int, int]], silence: Silence) -> dict[str, Any]:
    """Return what is remembered of labels before any is read."""
    partitions = _unread(bases)
    counts = {"expired": {}, "refused": 0, "late": 0, "waiting": 0}
    return {"floor": NEVER, **counts, "silence": silence.saved(), "partitions": partitions}


def _unread(bases: Mapping[Partition, tuple[int, int]]) -> dict[str, Any]:
    return {
        str(partition): {"base": offset, "clock": clock, "position": offset, "waiting": 0, "fingerprint": None}
        for partition, (offset, clock) in bases.items()
    }


def _rivals_read(rivals: LabelReader | None) -> dict[str, Any]:
    """Return where rivals that wait are to be read again, as facts."""
    if rivals is None:
        return {}
    with rivals.still() as read:
        bases, found = rivals.index.bases(), dict[str, Any]()
        for partition, number in rivals.numbers.items():
            base, clock = bases.get(number) or (read.positions[partition], read.clocks[partition])
            known = read.fingerprints.get(partition)
            fingerprint = None if known is None else list(known)
            position = read.positions[partition]
            found[str(partition)] = {"base": base, "clock": clock, "position": position, "fingerprint": fingerprint}
    return {"rivals": found}


def _begin_of(partitions: Mapping[str, Any], floor: int) -> Begin:
    named = {Partition.parse(name): one for name, one in partitions.items()}
    return Begin(
        bases={partition: (int(one["base"]), int(one["clock"])) for partition, one in named.items()},
        counted={partition: int(one["position"]) for partition, one in named.items()},
        fingerprints={partition: Fingerprint.of_facts(one["fingerprint"]) for partition, one in named.items()},
        floor=floor,
    )


def _keys(decoded: Decoded) -> Column:
    if decoded.keys is None:
        raise TypeError("the records were decoded without their keys")
    return decoded.keys


def _nothing(rows: int) -> tuple[Column, ...]:
    """Return the columns of rows that are looked at without their labels."""
    hashes, checks, times = np.zeros(rows, np.int64), np.zeros(rows, np.uint32), np.full(rows, NEVER)
    return hashes, checks, times, np.ones(rows, np.uint8), np.full(rows, _NONE, np.uint8)
