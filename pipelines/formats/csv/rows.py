"""CSV records as Python objects, for a look at a few: their delimiter, their columns and their header line. Pure."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.draft import ENOUGH, DraftSample, Look, joined, text_value
from millrace.pipelines.formats.shared.paths import escaped

_DELIMITERS = ",;\t|"


def look_at_rows(sample: DraftSample) -> Look | None:
    """Return the look at rows of as many columns as most have; None where the records are no CSV."""
    values, columns = sample.values, sample.columns
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
    cells = [dict(zip(sources, map(text_value, parsed[at]), strict=True)) for at in kept]
    rows = joined(cells, [sample.beside[at] for at in kept])
    settings: dict[str, Any] = {"columns": list(names), **({"delimiter": delimiter} if delimiter != "," else {})}
    return Look(
        format="csv",
        rows=rows,
        looked_at=len(values),
        section={"csv": settings},
        hints={} if columns or header else {"csv": "generated names; correct them here and below"},
        empty_is_absent=True,
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
    typed = [sum(not isinstance(text_value(text), str) for text in column) for column in zip(*rows, strict=True)]
    if max(typed) < len(rows) / 2:
        return ()
    column = typed.index(max(typed))

    def is_header(row: Sequence[str]) -> bool:
        texts = all(text.strip() and isinstance(text_value(text), str) for text in row)
        return texts and len({*row}) == len(row)

    return next((tuple(row) for row in rows if isinstance(text_value(row[column]), str) and is_header(row)), ())
