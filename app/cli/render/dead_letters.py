"""Dead letters as rows, in words and as JSON. Pure but for the secrets that the options read.

Anybody may write to the topic, and headers, fields and values are the producers': none of it is taken for granted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.cli.render.printable import printable
from app.monitoring.models import event_moment
from app.settings import Settings
from app.settings.connection import kafka_options
from consumers.dead_letters.reader import ReceivedLetter
from consumers.dead_letters.redrive import Redrive, Redriven
from consumers.errors import ConfigError
from consumers.kafka.options import KafkaOptions
from consumers.reasons import Reason
from consumers.records import Partition

_SHOWN = 200
_LONGEST_NUMBER = 19
"""Digits of the largest 64-bit integer."""


def options(settings: Settings) -> KafkaOptions:
    """How to read the dead letters' topic. ConfigError where there is none."""
    topic = settings.records.dead_letters.topic
    if topic is None:
        raise ConfigError(
            "records.dead_letters.topic: none is set, so what is set aside is only counted (`millrace status` tells by "
            "reason); name a topic to keep it"
        )
    return replace(kafka_options(settings.kafka), topics=(topic,))


def parsed(place: str, topic: str) -> tuple[Partition, int]:
    """Read `0:1203`."""
    partition, _, offset = place.partition(":")
    if not (partition.isdecimal() and offset.isdecimal() and place.isascii()):
        raise ConfigError(f"{place!r} is no place of a letter; write PARTITION:OFFSET, as the list has it")
    return Partition(topic, int(partition)), int(offset)


def present(letter: ReceivedLetter | None, place: str) -> ReceivedLetter:
    """The letter; ConfigError where there is none."""
    if letter is None:
        raise ConfigError(f"there is no letter at {place}, or none any more; `millrace dead-letters list` has them")
    return letter


def headings(*, values: bool) -> list[str]:
    """Of the list."""
    return ["letter", "reason", "field", "record", "written", "bytes", *(["value"] if values else [])]


def row(letter: ReceivedLetter, *, values: bool) -> list[str]:
    """A line of the list."""
    told = facts(letter, values=values)
    size = "null" if told["value_bytes"] is None else f"{told['value_bytes']:,}"
    cells = [told["letter"], told["reason"], told["field"] or "", told["record"], told["written"] or "", size]
    shown = [*cells, told["value"][:_SHOWN] if told["value"] is not None else "null"] if values else cells
    return [printable(cell) for cell in shown]


def facts(letter: ReceivedLetter, *, values: bool) -> dict[str, Any]:
    """All of it; what the record held only where it was asked for."""
    ours = letter.ours
    told: dict[str, Any] = {
        "letter": f"{letter.place.number}:{letter.place_offset}",
        "reason": ours.get("reason", "not one of millrace's"),
        "field": ours.get("field"),
        "record": ":".join(ours.get(key, "?") for key in ("topic", "partition", "offset")),
        "written": _moment(ours.get("timestamp", "0")),
        "set_aside": event_moment(letter.sent_ms),
        "set_aside_by": ours.get("name"),
        "value_bytes": _size(letter),
        "key_bytes": None if letter.key is None else len(letter.key),
        "headers": [name for name, _ in letter.headers],
    }
    return {**told, "key": _text(letter.key), "value": _text(letter.value)} if values else told


def in_words(told: Mapping[str, Any]) -> Iterator[str]:
    """For people."""
    for name, value in told.items():
        shown = "none" if value is None or value == [] else ", ".join(value) if isinstance(value, list) else str(value)
        yield f"{name.replace('_', ' '):<13} {printable(shown)}"


def reasons(names: Iterable[str]) -> list[Reason]:
    """Read `--reason`."""
    if unknown := [name for name in names if name not in list(Reason)]:
        raise ConfigError(f"--reason: {unknown[0]!r} is none; there are {', '.join(Reason)}")
    return [Reason(name) for name in names]


def redriven_in_words(done: Redriven, wanted: Redrive, *, dry_run: bool) -> Iterator[str]:
    """What a redrive has done, or would do."""
    went = "would go" if dry_run else "went"
    by_reason = f" ({_counted(done.sent)})" if done.sent else ""
    yield f"{done.sent.total():,} records {went} from {wanted.letters} to {wanted.to}{by_reason}"
    if done.stayed:
        yield f"{done.stayed.total():,} letters {'would ' if dry_run else ''}stay: {_counted(done.stayed)}"


def _counted(counts: Mapping[str, int]) -> str:
    return printable(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))


def _size(letter: ReceivedLetter) -> int | None:
    """What the record's value weighed; a letter that was shortened says so."""
    if letter.value is None:
        return None
    shortened = _number(letter.ours.get("value_bytes", ""))
    return len(letter.value) if shortened is None else shortened


def _moment(milliseconds: str) -> str | None:
    """When the record was written; where the trainer set it aside it is known by its origin alone."""
    written = _number(milliseconds)
    return event_moment(written) if written else None


def _number(text: str) -> int | None:
    """What a header says, where it is a number that Kafka could hold: anybody may write to the topic."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER else None


def _text(value: bytes | None) -> str | None:
    """As text where it is text, else as Python writes bytes."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)
