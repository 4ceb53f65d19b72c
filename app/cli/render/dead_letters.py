"""Dead letters as rows, in words and as JSON. Pure, except that the options read secrets.

Any program may write to the topic, and headers, fields and values come from producers: nothing in them is trusted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from millrace.app.cli.render.printable import printable
from millrace.app.monitoring.shapes import event_moment
from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_options
from millrace.consumers.dead_letters.reader import ReceivedLetter
from millrace.consumers.dead_letters.redrive import Redrive, Redriven
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.consumers.suggested_command import suggested_command

_SHOWN = 200
_LONGEST_NUMBER = 19
"""Digits of the largest 64-bit integer."""


def options(settings: Settings) -> KafkaOptions:
    """Return the options for reading the dead letters' topic. ConfigError where no topic is set."""
    topic = settings.records.dead_letters.topic
    if topic is None:
        raise ConfigError(
            "records.dead_letters.topic: none is set, so what is set aside is only counted (`millrace status` tells by "
            "reason); name a topic to keep it"
        )
    return replace(kafka_options(settings.kafka), topics=(topic,))


def parsed(place: str, topic: str) -> tuple[Partition, int]:
    """Parse a place such as `0:1203`."""
    partition, _, offset = place.partition(":")
    if not (partition.isdecimal() and offset.isdecimal() and place.isascii()):
        raise ConfigError(f"{place!r} is no place of a letter; write PARTITION:OFFSET, as the list has it")
    return Partition(topic, int(partition)), int(offset)


def present(letter: ReceivedLetter | None, place: str) -> ReceivedLetter:
    """Return the letter. ConfigError where there is none."""
    if letter is None:
        raise ConfigError(
            f"there is no letter at {place}, or none any more; `{suggested_command('dead-letters', 'list')}` has them"
        )
    return letter


def headings(*, values: bool) -> list[str]:
    """Return the headings of the list."""
    return ["letter", "reason", "field", "schema", "record", "written", "bytes", *(["value"] if values else [])]


def row(letter: ReceivedLetter, *, values: bool) -> list[str]:
    """Return one row of the list."""
    known = facts(letter, values=values)
    size = "null" if known["value_bytes"] is None else f"{known['value_bytes']:,}"
    what = [known["letter"], known["reason"], known["field"] or "", known["schema"] or ""]
    cells = [*what, known["record"], known["written"] or "", size]
    shown = [*cells, known["value"][:_SHOWN] if known["value"] is not None else "null"] if values else cells
    return [printable(cell) for cell in shown]


def facts(letter: ReceivedLetter, *, values: bool) -> dict[str, Any]:
    """Return everything about a letter; keys and values only on request."""
    headers = letter.ours
    known: dict[str, Any] = {
        "letter": f"{letter.place.number}:{letter.place_offset}",
        "reason": headers.get("reason", "not one of millrace's"),
        "field": headers.get("field"),
        "schema": headers.get("schema"),
        "detail": headers.get("detail"),
        "record": ":".join(headers.get(key, "?") for key in ("topic", "partition", "offset")),
        "written": _moment(headers.get("timestamp", "0")),
        "without_record": headers.get("without_record"),
        "set_aside": event_moment(letter.sent_ms),
        "set_aside_by": headers.get("name"),
        "value_bytes": _size(letter),
        "key_bytes": None if letter.key is None else len(letter.key),
        "headers": [name for name, _ in letter.headers],
    }
    return {**known, "key": _text(letter.key), "value": _text(letter.value)} if values else known


def in_words(known: Mapping[str, Any]) -> Iterator[str]:
    """Give the facts line by line, for people."""
    for name, value in known.items():
        shown = "none" if value is None or value == [] else ", ".join(value) if isinstance(value, list) else str(value)
        yield f"{name.replace('_', ' '):<13} {printable(shown)}"


def reasons(names: Iterable[str]) -> list[Reason]:
    """Parse the values of `--reason`."""
    if unknown := [name for name in names if name not in list(Reason)]:
        raise ConfigError(f"--reason: {unknown[0]!r} is none; there are {', '.join(Reason)}")
    return [Reason(name) for name in names]


def redriven_in_words(done: Redriven, wanted: Redrive, *, dry_run: bool) -> Iterator[str]:
    """Give what a redrive has done, or would do, line by line."""
    went = "would go" if dry_run else "went"
    by_reason = f" ({_counted(done.sent)})" if done.sent else ""
    yield f"{done.sent.total():,} records {went} from {wanted.letters} to {wanted.to}{by_reason}"
    if done.stayed:
        yield f"{done.stayed.total():,} letters {'would ' if dry_run else ''}stay: {_counted(done.stayed)}"


def _counted(counts: Mapping[str, int]) -> str:
    return printable(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))


def _size(letter: ReceivedLetter) -> int | None:
    """Return the size of the record's value in bytes; a shortened letter carries the original size."""
    if letter.value is None:
        return None
    shortened = _number(letter.ours.get("value_bytes", ""))
    return len(letter.value) if shortened is None else shortened


def _moment(milliseconds: str) -> str | None:
    """Return when the record was written; None for a letter that carries only the record's origin."""
    written = _number(milliseconds)
    return event_moment(written) if written else None


def _number(text: str) -> int | None:
    """Return a header's number; None where it is not one that Kafka could hold: any program may write to the topic."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER else None


def _text(value: bytes | None) -> str | None:
    """Return the value as text, or as Python writes bytes where it is not text."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)
