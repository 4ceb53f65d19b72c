"""The first values of each partition of a topic, and the format in which they seem to be written.

Pure, except for `first_values`, which connects as a start does, commits nothing and writes nothing.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.service.sampling import read_between
from app.settings.connection import kafka_options
from app.settings.sections.kafka import KafkaSettings
from app.tools.init.arrival_rate import records_per_s
from consumers.errors import ConfigError
from consumers.kafka.positions import Earliest, Latest
from consumers.kafka.source import KafkaSource

_EACH = 400
"""Records of each partition."""
_MOST = 4000
_CONNECT_S = 10.0
_STOP_S = 5.0
_DELIMITERS = ",;\t|"
_ENOUGH = 0.9
"""The share of records that a format must fit."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The contents of some records, as Python objects."""

    format: str
    rows: Sequence[Row]
    """Those that fit the format."""
    looked_at: int
    columns: tuple[str, ...] = ()
    """Of CSV."""
    delimiter: str = ","
    named: bool = True
    """Whether the columns' names are the records' own."""


def first_values(kafka: KafkaSettings) -> tuple[list[bytes], int, float | None]:
    """Return some hundred values from the start of each partition, the number of offsets, and the records a second.

    Tombstones are left out. The rate is None where it is not known.
    """
    source = KafkaSource(kafka_options(kafka))
    source.start(_CONNECT_S)
    try:
        first, end = source.resolve_start(Earliest()), source.resolve_start(Latest())
        share = max(1, min(_EACH, _MOST // max(1, len(first))))
        until = {partition: min(offset + share, end[partition]) for partition, offset in first.items()}
        chunks = [*read_between(source, 1, first, until)]
        oldest_ms = min((int(min(chunk.timestamps)) for chunk in chunks if len(chunk)), default=0)
        rate = records_per_s(source.resolve_start, oldest_ms)
    finally:
        source.stop(_STOP_S)
    chunks.sort(key=lambda chunk: chunk.partition)
    values = [value for chunk in chunks for value in chunk.values if value]
    if not values:
        raise ConfigError(
            f"{', '.join(kafka.topics)} holds no record yet; write some hundred, so that there is something to look at"
        )
    return values, sum(end[partition] - first[partition] for partition in first), rate


def look_at(values: Sequence[bytes], columns: Sequence[str] = ()) -> Look:
    """Guess the format. ConfigError where it cannot be guessed."""
    return _as_json(values) or _as_csv(values, tuple(columns)) or _unknown(values)


def _as_json(values: Sequence[bytes]) -> Look | None:
    rows = [row for row in map(_json, values) if row is not None]
    if len(rows) < _ENOUGH * len(values):
        return None
    return Look(format="json", rows=rows, looked_at=len(values))


def _json(value: bytes) -> Row | None:
    try:
        row = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _as_csv(values: Sequence[bytes], columns: tuple[str, ...]) -> Look | None:
    try:
        lines = [value.decode() for value in values]
    except UnicodeDecodeError:
        return None
    best: tuple[int, str, int, list[list[str]]] = (0, ",", 0, [])
    for delimiter in _DELIMITERS:
        parsed = [_cells(line, delimiter) for line in lines]
        width, count = Counter(map(len, parsed)).most_common(1)[0]
        if width > 1 and count >= _ENOUGH * len(lines):
            best = max(best, (width, delimiter, count, [row for row in parsed if len(row) == width]))
    width, delimiter, _, parsed = best
    if not width:
        return None
    names, named = _names(parsed, columns, width)
    rows = [dict(zip(names, map(_csv_value, row), strict=True)) for row in parsed if tuple(row) != names]
    return Look(format="csv", rows=rows, looked_at=len(values), columns=names, delimiter=delimiter, named=named)


def _cells(line: str, delimiter: str) -> list[str]:
    """Return the columns of a record; none where it cannot be CSV."""
    try:
        return next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
    except csv.Error:
        return []


def _names(parsed: Sequence[Sequence[str]], columns: tuple[str, ...], width: int) -> tuple[tuple[str, ...], bool]:
    """Return the given names; else a header line's, where the first record is one; else generated ones."""
    if columns and len(columns) != width:
        raise ConfigError(f"--columns: {len(columns)} names, and the records have {width} columns; name each")
    header = tuple(parsed[0])
    is_header = (
        len({*header}) == width
        and all(name.strip() and isinstance(_csv_value(name), str) for name in header)
        and any(not isinstance(_csv_value(text), str) for text in parsed[-1])
    )
    made_up = tuple(f"column_{number}" for number in range(1, width + 1))
    return columns or (header if is_header else made_up), bool(columns) or is_header


def _csv_value(text: str) -> Any:
    if not text.strip():
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _unknown(values: Sequence[bytes]) -> Look:
    sizes = {len(value) for value in values}
    if len(sizes) == 1:
        size = sizes.pop()
        raise ConfigError(
            f"the records are neither JSON objects nor CSV; all have {size} bytes, so they may be raw tensors, which "
            "do not describe their contents: write the config by hand, with format: raw and the fields in their order"
        )
    raise ConfigError("the records are neither JSON objects nor CSV rows; docs/formats.md lists what can be read")
