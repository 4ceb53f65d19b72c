"""Destinations: where a rewind may go back to, as people write it, and which checkpoint that comes to.

Owns the words and the choice; reads the store, changes nothing. The choice is made on the present timeline alone: what
was last ordered, its parent, and so on. It takes the newest that fits and verifies, so that least is read again.

A time means event time: nothing that the checkpoint has learnt is from then or later. Where its history does not know
event times (an older version began it), the time at which it was written decides. An offset means that the partition's
position there is at most that; a checkpoint from before the partition came counts as such.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from consumers.errors import ConfigError
from consumers.kafka.positions import Ago, At, Start, parse_start
from consumers.records import Partition
from training.checkpoints.inspection import Condition, Inspection
from training.checkpoints.manifest import Manifest
from training.checkpoints.store import CheckpointStore
from training.errors import CorruptError, MissingCheckpointError
from training.history.lineage import ledger_of

log = logging.getLogger(__name__)
_OFFSET = re.compile(r"(?P<partition>.{1,249}:\d{1,9}):(?P<offset>\d{1,18})", re.ASCII)
_WAYS = "write a checkpoint's number, a time as in 2026-11-21T03:00:00Z, an age as in -2h, or topic:partition:offset"


@dataclass(frozen=True, slots=True)
class Numbered:
    """The checkpoint of this number, on whatever timeline."""

    number: int


@dataclass(frozen=True, slots=True)
class Before:
    """The newest that has learnt nothing from this time on, milliseconds since 1970."""

    time_ms: int

    def __str__(self) -> str:
        return f"has learnt only what is from before {At(self.time_ms)}"


@dataclass(frozen=True, slots=True)
class NotPast:
    """The newest that has not gone past this offset."""

    partition: Partition
    offset: int

    def __str__(self) -> str:
        return f"stands at offset {self.offset} of {self.partition} or before it"


Destination = Numbered | Before | NotPast


def parse_destination(text: str, *, now_s: float) -> Destination:
    """What `to` says."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return Numbered(int(text))
    match _time(text):
        case Ago(seconds):
            return Before(max(0, round((now_s - seconds) * 1000)))
        case At(timestamp_ms):
            return Before(timestamp_ms)
    if (found := _OFFSET.fullmatch(text)) is not None:
        return NotPast(Partition.parse(found["partition"]), int(found["offset"]))
    raise ConfigError(f"to: {text[:60]!r} is no place to go back to; {_WAYS}")


def _time(text: str) -> Start | None:
    """A time or an age, or another word of `kafka.start`; ConfigError for a time that says too little."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        with suppress(ConfigError):
            return parse_start(text)
        return None
    return parse_start(text)


def find(store: CheckpointStore, destination: Destination) -> int:
    """The number of the checkpoint. MissingCheckpointError where none on the timeline will do."""
    if isinstance(destination, Numbered):
        return destination.number
    fits = _criterion(store, destination)
    way: list[int] = []
    for found in timeline(store):
        if found.number is None or found.manifest is None or found.condition is not Condition.GOOD:
            continue
        way.append(found.number)
        try:
            if fits(found.manifest) and store.verify(found.number).verified:
                return found.number
        except (CorruptError, MissingCheckpointError) as error:  # damaged, or pruned meanwhile
            log.warning("checkpoint %s is passed over: %s", found.name, error)
    raise MissingCheckpointError(
        f"no checkpoint on the present timeline {destination}; there are {', '.join(map(str, way)) or 'none'}: "
        "`millrace checkpoints show` tells what is in them, and `--to` takes a number"
    )


def timeline(store: CheckpointStore) -> Iterator[Inspection]:
    """What was last ordered, and before it its parents as far as they are on disk, damaged ones included."""
    looks = {one.number: one for one in store.listing() if one.number is not None}
    unfenced = [number for number, one in looks.items() if one.condition is not Condition.FENCED]
    found = looks[max(unfenced)] if unfenced else None
    while found is not None:
        yield found
        if found.manifest is not None:
            yield from (looks[number] for number in found.manifest.ancestors if number in looks)
            return
        parent = None if found.lineage is None else found.lineage.parent
        found = looks.get(parent) if parent is not None else None


def _criterion(store: CheckpointStore, destination: Before | NotPast) -> Callable[[Manifest], bool]:
    if isinstance(destination, Before):
        return lambda manifest: _learnt_before(store, manifest, destination.time_ms)
    wanted, known = str(destination.partition), _partitions(store)
    if wanted not in known:
        raise ConfigError(f"to: {wanted} is no partition of this timeline; it has {', '.join(sorted(known)) or 'none'}")
    return lambda manifest: manifest.positions.get(wanted, 0) <= destination.offset


def _learnt_before(store: CheckpointStore, manifest: Manifest, time_ms: int) -> bool:
    span = ledger_of(store, manifest.number).statistics().event_span
    if not span.known:
        return manifest.created.timestamp() * 1000 < time_ms
    return span.newest_ms is None or span.newest_ms < time_ms


def _partitions(store: CheckpointStore) -> set[str]:
    return {name for one in timeline(store) if one.manifest is not None for name in one.manifest.positions}
