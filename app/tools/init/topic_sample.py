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
from app.tools.init.nested_rows import by_source
from consumers.errors import ConfigError
from consumers.kafka.positions import Earliest, Latest
from consumers.kafka.source import KafkaSource
from consumers.records import Headers
from pipelines.decoders.paths import Envelope, Path, PathStep, escaped
from pipelines.decoders.text import is_utf8

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
    """Those that fit the format, by source."""
    looked_at: int
    columns: tuple[str, ...] = ()
    """Of CSV."""
    delimiter: str = ","
    named: bool = True
    """Whether the columns' names are the records' own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRecords:
    """The first records of each partition that have a value."""

    values: Sequence[bytes]
    beside: Sequence[Row]
    """The key and the headers of each, by source."""
    held: int
    """How many offsets the topic has."""
    records_per_s: float | None
    """None where it is not known."""


def first_records(kafka: KafkaSettings) -> FirstRecords:
    """Return some hundred records from the start of each partition; tombstones are left out."""
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
    found = [
        (value, beside_of(key, headers))
        for chunk in chunks
        for value, key, headers in zip(chunk.values, chunk.keys, chunk.headers, strict=True)
        if value
    ]
    if not found:
        raise ConfigError(
            f"{', '.join(kafka.topics)} holds no record yet; write some hundred, so that there is something to look at"
        )
    return FirstRecords(
        values=[value for value, _ in found],
        beside=[beside for _, beside in found],
        held=sum(end[partition] - first[partition] for partition in first),
        records_per_s=rate,
    )


def beside_of(key: bytes | None, headers: Headers) -> Row:
    """Return a key and headers by source; texts of numbers and truth values as a decoder reads them."""
    found = {str(Path((), Envelope.KEY)): key}
    found |= {str(Path((PathStep(name),), Envelope.HEADER)): value for name, value in headers if name}
    return {source: _csv_value(value.decode()) if is_utf8(value) else value for source, value in found.items() if value}


def look_at(values: Sequence[bytes], columns: Sequence[str] = (), beside: Sequence[Row] = ()) -> Look:
    """Guess the format. ConfigError where it cannot be guessed. `beside` has what is beside each value, by source."""
    beside = beside or [{}] * len(values)
    return _as_json(values, beside) or _as_csv(values, tuple(columns), beside) or _unknown(values)


def _as_json(values: Sequence[bytes], beside: Sequence[Row]) -> Look | None:
    found = [(row, more) for row, more in zip(map(_json, values), beside, strict=True) if row is not None]
    if len(found) < _ENOUGH * len(values):
        return None
    rows = by_source([row for row, _ in found])
    return Look(format="json", rows=_joined(rows, [more for _, more in found]), looked_at=len(values))


def _joined(rows: Sequence[Row], beside: Sequence[Row]) -> list[Row]:
    return [{**row, **more} for row, more in zip(rows, beside, strict=True)]


def _json(value: bytes) -> Row | None:
    try:
        row = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _as_csv(values: Sequence[bytes], columns: tuple[str, ...], beside: Sequence[Row]) -> Look | None:
    try:
        lines = [value.decode() for value in values]
    except UnicodeDecodeError:
        return None
    best: tuple[int, str, int, list[list[str]]] = (0, ",", 0, [])
    for delimiter in _DELIMITERS:
        parsed = [_cells(line, delimiter) for line in lines]
        width, count = Counter(map(len, parsed)).most_common(1)[0]
        if width > 1 and count >= _ENOUGH * len(lines):
            best = max(best, (width, delimiter, count, parsed))
    width, delimiter, _, parsed = best
    if not width:
        return None
    names, named = _names([row for row in parsed if len(row) == width], columns, width)
    kept = [at for at, row in enumerate(parsed) if len(row) == width and tuple(row) != names]
    sources = [escaped(name) for name in names]
    cells = [dict(zip(sources, map(_csv_value, parsed[at]), strict=True)) for at in kept]
    rows = _joined(cells, [beside[at] for at in kept])
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
