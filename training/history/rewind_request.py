"""A rewind as people ask for it: where to go back to, what to skip from then on, and which skips to lift. Pure.

Owns the syntax. A destination is the number of a checkpoint, `latest`, `best` by the watched metric, a time, an age, or
an offset of a partition. A range to skip is written `clicks:0:100-200`, both ends included.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Ago, At, Start, parse_start
from millrace.consumers.records import Partition
from millrace.consumers.units import whole_number
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.commands import Rewind
from millrace.training.ledger.interventions import Skip, uncovered

# The longest name of a topic has 249 characters, and 18 digits always fit an int64.
_OFFSET = re.compile(r"(?P<partition>.{1,249}:\d{1,9}):(?P<offset>\d{1,18})", re.ASCII)
_RANGE = re.compile(r"(?P<partition>.{1,249}:\d{1,9}):(?P<first>\d{1,18})-(?P<last>\d{1,18})", re.ASCII)
_WAYS = (
    "write a checkpoint's number, latest, best, a time as in 2026-11-21T03:00:00Z, an age as in -2h, or "
    "topic:partition:offset"
)


@dataclass(frozen=True, slots=True)
class Numbered:
    """The checkpoint of this number, on any timeline."""

    number: int


@dataclass(frozen=True, slots=True)
class Before:
    """The newest checkpoint that has learnt nothing from this time on, in milliseconds since 1970."""

    time_ms: int

    def __str__(self) -> str:
        return f"has learnt only what is from before {At(self.time_ms)}"


@dataclass(frozen=True, slots=True)
class NotPast:
    """The newest checkpoint that has not gone past this offset."""

    partition: Partition
    offset: int

    def __str__(self) -> str:
        return f"stands at offset {self.offset} of {self.partition} or before it"


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest checkpoint on the present timeline that verifies."""

    def __str__(self) -> str:
        return "verifies"


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint on the present timeline by the watched metric."""

    def __str__(self) -> str:
        return "has a value of the watched metric over enough records"


Destination = Numbered | Before | NotPast | Newest | Best
_WORDS: Mapping[str, Destination] = {"latest": Newest(), "best": Best()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRequest:
    """A rewind, before it is known which checkpoint its destination is."""

    to: Destination
    skips: Sequence[Skip] = ()
    unskip: Sequence[str] = ()
    """The names of earlier skips that are to be lifted."""
    by: str | None = None
    note: str | None = None
    answer: "Future[Manifest]" = field(default_factory=Future)
    """Answers the command, once it is given to a trainer."""

    def command(self, number: int) -> Rewind:
        """Return the command to go back to the checkpoint of this number."""
        return Rewind(to=number, skips=self.skips, unskip=self.unskip, by=self.by, note=self.note, answer=self.answer)


def parse_destination(text: str, *, now_s: float) -> Destination:
    """Parse a destination, or raise ConfigError. An age counts back from `now_s`, in seconds since 1970."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if (number := whole_number(text)) is not None:
        return Numbered(number)
    match _parse_time(text):
        case Ago(seconds):
            return Before(max(0, round((now_s - seconds) * 1000)))
        case At(timestamp_ms):
            return Before(timestamp_ms)
    if (offset := _OFFSET.fullmatch(text)) is not None:
        return NotPast(Partition.parse(offset["partition"]), int(offset["offset"]))
    raise ConfigError(f"to: {text[:60]!r} is no place to go back to; {_WAYS}")


def _parse_time(text: str) -> Start | None:
    """Parse a time, an age, or another word of `kafka.start`; ConfigError for a time without a zone."""
    # What reads as a time is parsed outside of `suppress`: without a zone it is refused by an error of its own.
    try:
        datetime.fromisoformat(text)
    except ValueError:
        with suppress(ConfigError):
            return parse_start(text)
        return None
    return parse_start(text)


def parse_skips(texts: Sequence[str], reason: str | None) -> list[Skip]:
    """Parse the ranges of one command. Where they overlap, an offset belongs to the first."""
    skips: list[Skip] = []
    for text in texts:
        skips.extend(uncovered(_parse_range(text, reason or "no reason was given"), skips))
    return skips


def _parse_range(text: str, reason: str) -> Skip:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"skip: {text[:60]!r} is not a range of offsets; write topic:partition:first-last, as in clicks:0:100-200"
        )
    first, last = int(match["first"]), int(match["last"])
    if last < first:
        raise ConfigError(f"skip: {text[:60]!r} ends before it begins; write the smaller offset first")
    partition = Partition.parse(match["partition"])
    return Skip(order="", partition=partition, start=first, end=last + 1, reason=reason)
