"""The join of records and labels that come later, in plain Python, from what its rules say and from nothing else.

It takes the three logs of which a join is a function: the records, the labels, and the jumps, which are the moments up
to which quiet partitions of both counted as read. It says what each record gets and what becomes of each label. No
part of the product is used here.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

Place = tuple[int, int]
"""A partition and an offset."""
Values = Mapping[str, float]
NEVER = -(2**62)
"""The time of a clock that knows nothing."""
LABELLED, ABSENT, DROPPED, TOO_OLD, WAITING = "labelled", "absent", "dropped", "too_old", "waiting"
USED, LATE, DUPLICATE, UNUSED, REFUSED = "used", "late", "duplicate", "unused", "refused"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one join."""

    within_ms: int
    early_ms: int
    absent: Mapping[str, float | None]
    """The value of each label of a record for which none came; None: such a record is dropped."""
    take: str = "first"
    match: str = "all"


class Record(NamedTuple):
    """A record that can be decoded."""

    offset: int
    key: str
    event: int
    """Its event time."""
    appended: int
    """Kafka's timestamp."""


class Label(NamedTuple):
    """A label's record."""

    offset: int
    key: str | None
    """None: it cannot be decoded."""
    event: int = 0
    values: Values = MappingProxyType({})


class Jump(NamedTuple):
    """A partition that was read to its end counted as read up to a moment."""

    partition: int
    end: int
    at: int


class Got(NamedTuple):
    """What a record gets."""

    outcome: str
    label: Values | None = None
    """What it is learnt with; None where it is not learnt."""


@dataclass(slots=True)
class Expected:
    """What a join comes to."""

    records: dict[Place, Got] = field(default_factory=dict)
    labels: dict[Place, str] = field(default_factory=dict)

    def learnt(self, partition: int) -> list[int]:
        """Return the offsets of a partition that are learnt."""
        return [at for (number, at), got in self.records.items() if number == partition and got.label is not None]

    def outcomes(self, partition: int) -> Counter[str]:
        """Count the records of a partition by their outcome."""
        return Counter(got.outcome for (number, _), got in self.records.items() if number == partition)

    def fates(self, read: Mapping[int, int]) -> Counter[str]:
        """Count the labels before these offsets of each partition by what becomes of them."""
        return Counter(fate for (number, at), fate in self.labels.items() if at < read[number])


class _Arrived(NamedTuple):
    """A label in the order in which a record takes it: by time, partition and offset."""

    event: int
    partition: int
    offset: int
    clock: int
    """Of its partition, before it."""
    values: Values


@dataclass(slots=True)
class _Arrivals:
    """The labels, as the reading of their partitions has found them."""

    by_key: defaultdict[str, list[_Arrived]] = field(default_factory=lambda: defaultdict(list))
    clocks: list[int] = field(default_factory=list)
    """Of each partition, at its end."""
    fates: dict[Place, set[str]] = field(default_factory=dict)


def plain_join(
    rules: Rules,
    records: Mapping[int, Sequence[Record]],
    labels: Mapping[int, Sequence[Label]],
    jumps: Iterable[Jump],
    *,
    now: int,
    of_records: Iterable[Jump] = (),
    of_rivals: Iterable[Jump] = (),
    cut: Collection[Place] = (),
) -> Expected:
    """Join by the jumps of labels and those of records.

    `of_rivals` are those by which records are read ahead, with `match`.

    All records and labels of the logs are read, the last of the labels at the time `now`. The labels at `cut` are cut
    out of history: no record gets them, and clocks go by them.
    """
    expected, arrivals, jumped = Expected(), _Arrivals(), defaultdict[int, list[Jump]](list)
    woken = [*of_records]
    for jump in jumps:
        jumped[jump.partition].append(jump)
    for number, label_log in labels.items():
        for offset in _arrive(rules, arrivals, number, label_log, jumped[number], now):
            expected.labels[number, offset] = REFUSED
    rivals = _Rivals(rules, records, [*of_rivals])
    for number, log in records.items():
        newest = NEVER
        for record in log:
            time = min(record.event, record.appended + rules.early_ms)
            quiet = [jump.at for jump in woken if jump.partition == number and jump.end <= record.offset]
            if time < max([newest, *quiet]) - rules.early_ms:
                expected.records[number, record.offset] = Got(TOO_OLD)
                continue
            newest = max(newest, time)
            if min([*arrivals.clocks, *rivals.clocks]) < time + rules.within_ms:
                expected.records[number, record.offset] = Got(WAITING)
                continue
            fits = [
                one
                for one in sorted(arrivals.by_key[record.key], key=lambda one: one[:3])
                if time - rules.early_ms <= one.event <= time + rules.within_ms and one[1:3] not in cut
            ]
            fits = [one for one in fits if rivals.leave(record.key, time, one.event)]
            on_time = [one for one in fits if one.clock < time + rules.within_ms]
            for one in fits:
                arrivals.fates[one.partition, one.offset].add(DUPLICATE if one in on_time else LATE)
            for one in _winners(rules, on_time):
                arrivals.fates[one.partition, one.offset].add(USED)
            expected.records[number, record.offset] = _got(rules, on_time)
    for place, found in arrivals.fates.items():
        none = SKIPPED if place in cut else UNUSED
        expected.labels[place] = next((fate for fate in (USED, LATE, DUPLICATE) if fate in found), none)
    return expected


class _Rivals:
    """With `match`, the records of each key, by the reading ahead of their partitions."""

    def __init__(self, rules: Rules, records: Mapping[int, Sequence[Record]], jumps: Sequence[Jump]) -> None:
        self._rules = rules
        self._by_key = defaultdict[str, list[tuple[int, int]]](list)
        """Times, and the clock of their partition before each."""
        self.clocks = list[int]()
        """Of each partition, at its end."""
        for number, log in records.items() if rules.match != "all" else ():
            read = NEVER
            for record in log:
                quiet = [jump.at for jump in jumps if jump.partition == number and jump.end <= record.offset]
                time = min(record.event, record.appended + rules.early_ms)
                self._by_key[record.key].append((time, max([read, *quiet])))
                read = max(read, time - rules.early_ms)
            self.clocks.append(max([read, *(jump.at for jump in jumps if jump.partition == number)]))
        for found in self._by_key.values():
            found.sort()

    def leave(self, key: str, time: int, label: int) -> bool:
        """Return whether a record of this time gets a label of that one, as none of its key is nearer."""
        rules = self._rules
        if rules.match == "all":
            return True
        first, last = (time + 1, label) if rules.match == "last_before" else (label, time - 1)
        there, due = self._by_key[key], time + rules.within_ms
        between = there[bisect_left(there, (first, NEVER)) : bisect_left(there, (last + 1, NEVER))]
        on_its_side = time <= label if rules.match == "last_before" else label <= time
        return on_its_side and not any(clock < due for _, clock in between)


def _arrive(
    rules: Rules, arrivals: _Arrivals, number: int, log: Sequence[Label], jumps: Sequence[Jump], now: int
) -> Iterator[int]:
    """Read a partition of labels, and yield the offsets of those that are refused."""
    read = NEVER
    for label in log:
        if label.key is None or label.event > now + rules.early_ms:
            yield label.offset
            continue
        clock = max([read, *(jump.at for jump in jumps if jump.end <= label.offset)])
        # Its clock has passed what any record needs of it.
        useless = clock >= label.event + rules.early_ms + rules.within_ms
        arrivals.fates[number, label.offset] = {LATE} if useless else set()
        arrivals.by_key[label.key].append(_Arrived(label.event, number, label.offset, clock, label.values))
        read = max(read, label.event - rules.early_ms)
    arrivals.clocks.append(max([read, *(jump.at for jump in jumps)]))


def _got(rules: Rules, on_time: Sequence[_Arrived]) -> Got:
    if on_time:
        return Got(LABELLED, {name: _taken(rules, [one.values[name] for one in on_time]) for name in rules.absent})
    label = {name: value for name, value in rules.absent.items() if value is not None}
    return Got(ABSENT, label) if len(label) == len(rules.absent) else Got(DROPPED)


def _taken(rules: Rules, values: Sequence[float]) -> float:
    match rules.take:
        case "first":
            return values[0]
        case "last":
            return values[-1]
        case "max":
            return max(values)
        case "sum":
            return sum(values)
        case "count":
            return float(len(values))
    raise ValueError(f"{rules.take!r} is no way to take one of several labels")


def _winners(rules: Rules, on_time: Sequence[_Arrived]) -> Sequence[_Arrived]:
    """Return the labels that have made what their record gets."""
    match rules.take:
        case "first":
            return on_time[:1]
        case "last":
            return on_time[-1:]
        case "max":
            most = {name: max((one.values[name] for one in on_time), default=0.0) for name in rules.absent}
            return [one for one in on_time if any(one.values[name] == most[name] for name in rules.absent)]
    return on_time
