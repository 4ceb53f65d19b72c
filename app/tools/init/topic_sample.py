"""The first values of each partition of a topic, how fast more come, and the format in which they seem to be written.

Pure, except for `first_records`, which connects as a start does, commits nothing and writes nothing.
"""

import csv
import io
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from millrace.app.service.sampling import read_between
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.kafka import KafkaSettings
from millrace.app.settings.sections.registry import RegistrySettings, to_registry
from millrace.app.tools.init.described_records import look_by_file, look_by_registry, schema_numbers
from millrace.app.tools.init.example_rows import look_at_examples
from millrace.app.tools.init.record_look import ENOUGH, NO_HINTS, Look, Row, SchemaHints, fitting, joined
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Ago, Earliest, Latest, Start
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Headers, Partition
from millrace.pipelines.formats.image.images import looks_like_an_image
from millrace.pipelines.formats.shared.paths import VALUE, Envelope, PathStep, escaped
from millrace.pipelines.formats.shared.paths import Path as SourcePath
from millrace.pipelines.formats.shared.text import is_utf8

_SPANS_S = (3_600.0, 86_400.0)
"""The last hour and the last day: the faster of both counts, as a model must keep up with a busy hour too."""
_LEAST_AGE_S = 120.0
"""A younger topic was filled for a trial, at a rate that says nothing."""
_PARTS = 12
"""Into this many equal parts a span is divided, to tell a stream from a bulk load."""
_BUSY_PARTS = 3
"""In a stream records come in so many parts at least; a bulk load is over within one or two."""
_RECENT_PARTS = 3
"""In so many of the newest parts of a topic's whole life none has come: it was filled, and is no stream now."""


def records_per_s(offsets_at: Callable[[Start], Mapping[Partition, int]], oldest_ms: int) -> float | None:
    """Return how many records came a second of late; None if that is not known.

    It is not if none came in a day, if the topic is too young, or if its records came in one go, as a bulk load does.
    `oldest_ms` is the time of the oldest record, milliseconds since 1970.
    """
    age_s = time.time() - oldest_ms / 1000
    if age_s < _LEAST_AGE_S:
        return None
    end = sum(offsets_at(Latest()).values())
    rates = []
    for span_s in _SPANS_S:
        seconds = min(span_s, age_s)
        since = [sum(offsets_at(Ago(seconds * part / _PARTS)).values()) for part in range(_PARTS, 0, -1)]
        if _is_stream([*since, end], is_whole_life=age_s < span_s):
            rates.append((end - since[0]) / seconds)
    return max(rates, default=None)


def _is_stream(counts: list[int], *, is_whole_life: bool) -> bool:
    """Return whether records come again and again, by how many there were at the ends of the parts."""
    came = [later > earlier for earlier, later in pairwise(counts)]
    ended = is_whole_life and not any(came[-_RECENT_PARTS:])
    return sum(came) >= _BUSY_PARTS and not ended


_MOST, _MOST_BYTES = 4000, 64 * 2**20
"""Records of all partitions, as many of each: enough to meet a class of which one comes in a thousand."""
_CONNECT_S = 10.0
_STOP_S = 5.0
_DELIMITERS = ",;\t|"
_READABLE = re.compile(rb"\s*[^\x00-\x08\x0e-\x1f\x7f\s{\[][^\x00-\x08\x0e-\x1f\x7f]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRecords:
    """The first records of each partition that have a value."""

    values: Sequence[bytes]
    beside: Sequence[Row]
    """The key and the headers of each, by source."""
    held: int
    """How many offsets the topic has."""
    partitions: int
    tombstones: int
    """Records without a value, among the first."""
    records_per_s: float | None
    """None where it is not known."""
    chunks: Sequence[Chunk] = ()
    """The same records, and tombstones."""


def first_records(kafka: KafkaSettings) -> FirstRecords:
    """Return some thousand records from the starts of the partitions, fewer if they are large, without tombstones."""
    source = KafkaSource(kafka_options(kafka))
    source.start(_CONNECT_S)
    try:
        first, end = source.resolve_start(Earliest()), source.resolve_start(Latest())
        share = max(1, _MOST // max(1, len(first)))
        until = {partition: min(offset + share, end[partition]) for partition, offset in first.items()}
        chunks, size = list[Chunk](), 0
        for chunk in read_between(source, 1, first, until):
            chunks.append(chunk)
            size += chunk.nbytes
            if size > _MOST_BYTES:
                break
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
        partitions=len(first),
        tombstones=sum(map(len, chunks)) - len(found),
        records_per_s=rate,
        chunks=chunks,
    )


def beside_of(key: bytes | None, headers: Headers) -> Row:
    """Return a key and headers by source; texts of numbers and truth values as a decoder reads them."""
    found = {str(SourcePath((), Envelope.KEY)): key}
    found |= {str(SourcePath((PathStep(name),), Envelope.HEADER)): value for name, value in headers if name}
    return {source: _csv_value(value.decode()) if is_utf8(value) else value for source, value in found.items() if value}


def look_at(
    values: Sequence[bytes], columns: Sequence[str] = (), beside: Sequence[Row] = (), hints: SchemaHints = NO_HINTS
) -> Look:
    """Guess the format. ConfigError where it cannot be guessed. `beside` has what is beside each value, by source."""
    beside = beside or [{}] * len(values)
    if numbers := schema_numbers(values):
        return look_by_registry(values, beside, numbers, hints)
    if hints.file is not None:
        return look_by_file(values, beside, hints)
    return (
        fitting("json", values, beside, _json)
        or look_at_examples(values, beside)
        or _as_images(values, beside)
        or _as_csv(values, tuple(columns), beside)
        or _as_text(values, beside)
        or _unknown(values)
    )


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
        if width > 1 and count >= ENOUGH * len(lines):
            best = max(best, (width, delimiter, count, parsed))
    width, delimiter, _, parsed = best
    if not width:
        return None
    if columns and len(columns) != width:
        raise ConfigError(f"--columns: {len(columns)} names, and the records have {width} columns; name each")
    header = _header([row for row in parsed if len(row) == width])
    names = columns or header or tuple(f"column_{number}" for number in range(1, width + 1))
    headers = sum(tuple(row) == header for row in parsed)
    notes = (f"{headers:,} of the records looked at are the header line; such records are set aside, as wrong_type",)
    kept = [at for at, row in enumerate(parsed) if len(row) == width and tuple(row) not in {names, header}]
    sources = [escaped(name) for name in names]
    cells = [dict(zip(sources, map(_csv_value, parsed[at]), strict=True)) for at in kept]
    rows = joined(cells, [beside[at] for at in kept])
    return Look(
        format="csv",
        rows=rows,
        looked_at=len(values),
        columns=names,
        delimiter=delimiter,
        named=bool(columns or header),
        notes=notes if headers else (),
    )


def _cells(line: str, delimiter: str) -> list[str]:
    """Return the columns of a record; none where it cannot be CSV."""
    try:
        return next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
    except csv.Error:
        return []


def _header(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the header line, wherever it lies among the rows; nothing if none of them is one.

    A header line is of distinct texts, where most rows have something else in one of the columns.
    """
    typed = [sum(not isinstance(_csv_value(text), str) for text in column) for column in zip(*rows, strict=True)]
    if max(typed) < len(rows) / 2:
        return ()
    column = typed.index(max(typed))

    def is_header(row: Sequence[str]) -> bool:
        texts = all(text.strip() and isinstance(_csv_value(text), str) for text in row)
        return texts and len({*row}) == len(row)

    return next((tuple(row) for row in rows if isinstance(_csv_value(row[column]), str) and is_header(row)), ())


def _csv_value(text: str) -> Any:
    if not text.strip():
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _as_images(values: Sequence[bytes], beside: Sequence[Row]) -> Look | None:
    rows = [{VALUE: value, **more} for value, more in zip(values, beside, strict=True) if looks_like_an_image(value)]
    enough = len(rows) >= ENOUGH * len(values)
    return Look(format="bytes", rows=rows, looked_at=len(values)) if enough else None


def _as_text(values: Sequence[bytes], beside: Sequence[Row]) -> Look | None:
    """Return the look at plain texts; what begins as JSON does is broken JSON, and no text."""
    texts = [value.decode() if is_utf8(value) and _READABLE.fullmatch(value) else None for value in values]
    found = [({VALUE: text}, more) for text, more in zip(texts, beside, strict=True) if text is not None]
    if len(found) < ENOUGH * len(values):
        return None
    rows = joined([row for row, _ in found], [more for _, more in found])
    return Look(format="text", rows=rows, looked_at=len(values))


def _unknown(values: Sequence[bytes]) -> Look:
    known = "the records are none of JSON, CSV, text and tf.train.Example"
    schema = "if Avro or Protobuf, name the schema that wrote them: --schema record.avsc, or record.proto"
    sizes = {len(value) for value in values}
    if len(sizes) == 1:
        raise ConfigError(
            f"{known}; {schema}; all have {sizes.pop()} bytes, so they may be raw tensors, which do not describe their "
            "contents: write the config by hand, with format: raw and the fields in their order"
        )
    raise ConfigError(f"{known}; {schema}; `millrace config schema` lists what can be read, under records.format")


_REGISTRY_S = 5.0


def schema_hints(registry: RegistrySettings | None, file: Path | None, message: str | None, out: Path) -> SchemaHints:
    """Return the hints; a config in the folder `out` has the file by a path from there."""
    schemas = None if registry is None else to_registry(registry, _REGISTRY_S)
    urls = () if registry is None else registry.url
    return SchemaHints(schemas=schemas, registry=urls, file=file, written=_written(file, out), message=message)


def _written(file: Path | None, out: Path) -> str:
    if file is None:
        return ""
    relative = os.path.relpath(file.absolute(), out.absolute())
    return relative if relative.startswith("..") else f"./{relative}"
