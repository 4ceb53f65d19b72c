"""The syntax of sources: where in a record, or beside it, a field's value is.

`user.age` is a field of a nested record, or the key of a map. `items[].price` is a value of each element of a list:
each `[]` is one dimension of the field's shape, and those at the end may be left out. A backslash takes the next
character as it is. `$value` is the whole value, where that is one text. `$key`, `$timestamp`, `$partition`, `$offset`,
`$topic` and `$header.NAME` are what Kafka has beside the value: the envelope. A flat format, as CSV, has no nesting:
there a path is the text of one name. Pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from millrace.consumers.errors import ConfigError

_TOKEN = re.compile(r"\\(?P<taken>.)|(?P<each>\[\])|(?P<dot>\.)|(?P<plain>[^\\.\[\]]+)|(?P<wrong>.)", re.DOTALL)
VALUE = "$value"
"""The source of the whole value, of records that are one value."""
_SPECIAL = re.compile(r"[\\.\[\]]")


class Envelope(StrEnum):
    """What Kafka has beside the value of a record."""

    KEY = "$key"
    TIMESTAMP = "$timestamp"
    PARTITION = "$partition"
    OFFSET = "$offset"
    TOPIC = "$topic"
    HEADER = "$header"


@dataclass(frozen=True, slots=True)
class PathStep:
    """A name, and how many lists its value is in."""

    name: str
    lists: int = 0


@dataclass(frozen=True, slots=True)
class Path:
    """A source that was parsed. `str` spells it as a source again."""

    steps: tuple[PathStep, ...]
    """The names from the outermost on; for a header its own name, for the rest of the envelope none."""
    envelope: Envelope | None = None
    """What of the envelope it is; None for a path into the value."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names alone."""
        return tuple(step.name for step in self.steps)

    @property
    def lists(self) -> int:
        """How many dimensions it has by its own account; the field's shape may have more."""
        return sum(step.lists for step in self.steps)

    @property
    def text(self) -> str:
        """The name by which a flat format knows it: nothing escaped, and without the `[]` at the end."""
        if self.envelope is not None:
            return str(self)
        *outer, last = self.steps
        return ".".join([*(step.name + "[]" * step.lists for step in outer), last.name])

    def __str__(self) -> str:
        if self.envelope is not None:
            return ".".join([self.envelope, *map(_taken_as_they_are, self.names)])
        text = ".".join(_SPECIAL.sub(r"\\\g<0>", step.name) + "[]" * step.lists for step in self.steps)
        return "\\" + text if text.startswith("$") else text


def parse(source: str) -> Path:
    """Return the path that a source spells. Raise ConfigError, one line, where it spells none."""
    if source == VALUE:
        return Path((PathStep(VALUE),))
    if source.startswith("$"):
        return _beside(source)
    steps: list[PathStep] = []
    for name in _names(source):
        if not name.name:
            raise _unclear(source, "a name is empty; write one on each side of a dot, or \\. for a dot in a name")
        steps.append(name)
    return Path(tuple(steps))


def escaped(name: str) -> str:
    """Return the source of the field that has exactly this name, dots and all."""
    return str(Path((PathStep(name),)))


def is_envelope(source: str) -> bool:
    """Return whether a source is what Kafka has beside the value."""
    return source.startswith("$") and source != VALUE


def of_names(names: Sequence[str]) -> str:
    """Return the source of a field of nested records, by its names from the outermost on."""
    return str(Path(tuple(map(PathStep, names))))


def _beside(source: str) -> Path:
    kind, dot, name = source.partition(".")
    if kind not in set(Envelope):
        raise _unclear(
            source, f"a record has no {kind} beside its value; write one of {', '.join(Envelope)}.NAME, or \\{source}"
        )
    if (kind == Envelope.HEADER) != bool(name) or (dot and not name):
        raise _unclear(
            source, "a header has a name, and nothing else here has; write $header.NAME, or the rest without a dot"
        )
    return Path((PathStep(re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL)),) if name else (), Envelope(kind))


def _taken_as_they_are(name: str) -> str:
    """Return the name of a header as a source spells it: only a backslash is special there."""
    return name.replace("\\", "\\\\")


def _names(source: str) -> list[PathStep]:
    steps, name, lists = list[PathStep](), "", 0
    for token in _TOKEN.finditer(source):
        if token["wrong"] is not None:
            raise _unclear(
                source, f"{token['wrong']!r} stands alone; write [] for each element of a list, or \\{token['wrong']}"
            )
        if token["each"] is not None:
            if not name:
                raise _unclear(source, "[] follows the name of a list; write the name before it, or \\[\\]")
            lists += 1
        elif token["dot"] is not None:
            steps.append(PathStep(name, lists))
            name, lists = "", 0
        elif lists:
            raise _unclear(source, "a dot must follow []; write it, as in items[].price")
        else:
            name += token["taken"] or token["plain"]
    return [*steps, PathStep(name, lists)]


def _unclear(source: str, why: str) -> ConfigError:
    return ConfigError(f"records: field: {source!r} is no path: {why}")
