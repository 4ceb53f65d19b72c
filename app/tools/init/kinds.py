"""The kinds of records in a sample: a text field of few values that tells which records have the label. Pure."""

from collections.abc import Sequence

from millrace.pipelines.formats.draft import Row

_MOST_KINDS = 12
_EACH = 5
"""So many records of a kind, on average, are needed to tell it from a coincidence."""


def kinds_of(rows: Sequence[Row], label: str) -> tuple[str, list[str]] | None:
    """Return the field that tells the records with the label from the others, and its values of those with it.

    None where all records have the label, or no field tells them apart.
    """
    for source in dict.fromkeys(source for row in rows for source in row if source != label):
        values = [value for row in rows if isinstance(value := row.get(source), str)]
        if len(values) < len(rows):
            continue
        kinds = {value for value, row in zip(values, rows, strict=True) if row.get(label) is not None}
        others = {value for value, row in zip(values, rows, strict=True) if row.get(label) is None}
        count = len(kinds) + len(others)
        few = count <= _MOST_KINDS and len(rows) >= _EACH * count
        if kinds and others and few and not kinds & others:
            return source, sorted(kinds)
    return None
