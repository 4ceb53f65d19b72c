"""Where to start and where to stop: the values of the settings `start` and `until`, as types.

Owns their syntax only (`earliest`, `-7d`, a time, offsets); runs anywhere. `consumers.kafka.source` asks Kafka
for the offsets that they mean.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.consumers.units import whole_number

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_AGO = re.compile(r"-(?P<number>\d{1,15}(?:\.\d{1,15})?)(?P<unit>ms|s|m|h|d|w)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that Kafka still has."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """Only what is written from now on."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class Committed:
    """The offsets that the group has committed."""

    def __str__(self) -> str:
        return "committed"


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record that is not older than this many seconds."""

    seconds: float

    def __str__(self) -> str:
        return "-" + f"{self.seconds:.3f}".rstrip("0").rstrip(".") + "s"


@dataclass(frozen=True, slots=True)
class At:
    """The first record at or after a time, milliseconds since 1970."""

    timestamp_ms: int

    def __str__(self) -> str:
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Offsets:
    """An explicit offset for each partition."""

    offsets: Mapping[Partition, int]

    def __str__(self) -> str:
        return ",".join(f"{partition}={offset}" for partition, offset in sorted(self.offsets.items()))


@dataclass(frozen=True, slots=True)
class Now:
    """The end of each partition at the time of the lookup."""

    def __str__(self) -> str:
        return "now"


Start = Earliest | Latest | Committed | Ago | At | Offsets
Until = Now | At | Offsets

_START_WAYS = "write earliest, latest, committed, an age as in -7d, a time as in 2026-11-21T03:00:00Z, or offsets"
_UNTIL_WAYS = "write now, a time as in 2026-11-21T03:00:00Z, or offsets as in clicks:0=123,clicks:1=77"


def parse_start(text: str | Mapping[str, int]) -> Start:
    """Parse `kafka.start`: a word, an age, a time, or offsets by partition. Raises ConfigError."""
    if not isinstance(text, str):
        return Offsets(_offsets(text.items(), text))
    words: dict[str, Start] = {"earliest": Earliest(), "latest": Latest(), "committed": Committed()}
    if word := words.get(text.strip().lower()):
        return word
    if ago := _AGO.fullmatch(text.strip()):
        return Ago(float(ago["number"]) * _UNITS_S[ago["unit"]])
    return _time_or_offsets(text, f"start {text!r} is not understood: {_START_WAYS}")


def parse_until(text: str | Mapping[str, int]) -> Until:
    """Parse `--until`: now, a time, or offsets by partition. Raises ConfigError."""
    if not isinstance(text, str):
        return Offsets(_offsets(text.items(), text))
    if text.strip().lower() == "now":
        return Now()
    return _time_or_offsets(text, f"until {text!r} is not understood: {_UNTIL_WAYS}")


def _time_or_offsets(text: str, complaint: str) -> At | Offsets:
    if "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        return Offsets(_offsets(((name.strip(), offset.strip()) for name, _, offset in pairs), text))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(complaint) from None
    if moment.tzinfo is None:
        raise ConfigError(f"the time {text!r} names no zone: write Z for UTC, as in 2026-11-21T03:00:00Z, or +01:00")
    if moment.timestamp() < 0:
        raise ConfigError(f"the time {text!r} is before 1970, where Kafka's time begins")
    return At(round(moment.timestamp() * 1000))


def _offsets(pairs: Iterable[tuple[str, int | str]], given: object) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for name, offset in pairs:
        try:
            partition = Partition.parse(name)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if partition in offsets:
            raise ConfigError(f"{given!r} names {partition} twice")
        number = None if isinstance(offset, bool) else whole_number(str(offset))
        if number is None:
            raise ConfigError(f"offset {offset!r} of {partition} is not a whole number from 0 up")
        offsets[partition] = number
    if not offsets:
        raise ConfigError("no offsets are given: write one a partition, as in clicks:0=123")
    return offsets
