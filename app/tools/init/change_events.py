"""Change events of a database, as Debezium writes them: an envelope around the row before and after. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from millrace.app.tools.init.columns import ColumnLook
from millrace.app.tools.init.record_look import Row

_OPERATIONS = frozenset("crudtm")
_PREFIXES = ("", "payload.")
"""Before the names of the envelope's fields: with schemas in the records they are those of `payload`."""
_BEFORE = "the row before the change, which may give the label away; name it with --features to learn from it"
_ABOUT = "of the envelope, about the change and not about the row; name it with --features to learn from it"


def envelope_of(columns: Sequence[ColumnLook]) -> str | None:
    """Return what is before the names of the envelope's fields; None if the records are no change events."""
    by_source = {column.source: column for column in columns}
    for prefix in _PREFIXES:
        operation = by_source.get(f"{prefix}op")
        parts = [any(source.startswith(f"{prefix}{part}.") for source in by_source) for part in ("after", "source")]
        if operation is not None and operation.distinct and {*operation.distinct} <= _OPERATIONS and all(parts):
            return prefix
    return None


def without_envelope(columns: Sequence[ColumnLook], prefix: str) -> list[ColumnLook]:
    """Return the columns, with the reason beside those that are left out: all but the new row and the operation."""
    about = tuple(f"{prefix}{part}" for part in ("source.", "transaction", "ts_"))

    def told(column: ColumnLook) -> ColumnLook:
        if column.source == f"{prefix}before" or column.source.startswith(f"{prefix}before."):
            return replace(column, why=_BEFORE, twin="")
        of_the_envelope = column.source.startswith(about) or column.source == "$key"
        return replace(column, why=_ABOUT) if of_the_envelope and not column.why else column

    return [told(column) for column in columns]


def deletes_and_tombstones(rows: Sequence[Row], prefix: str, looked_at: int, tombstones: int) -> str:
    """Return the sentence about the change events that hold no row."""
    deletes = sum(row.get(f"{prefix}op") == "d" for row in rows)
    return (
        f"these are change events of Debezium, learnt from the new row: of {looked_at + tombstones:,} records "
        f"{deletes:,} are deletes, which have none, and {tombstones:,} tombstones; such records are set aside, as "
        "missing and empty"
    )
