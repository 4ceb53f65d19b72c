"""Which fields a record that is one value may have. Pure; imports no pyarrow."""

from collections.abc import Iterable

from millrace.pipelines.formats.shared.paths import VALUE, is_envelope
from millrace.pipelines.schema import Field

WHOLE_FORMATS = frozenset({"text", "bytes"})
"""The formats of records that are one value."""


def whole_complaint(form: str, fields: Iterable[Field]) -> str | None:
    """Return what is wrong with the fields of records of a format, in words; None where nothing is."""
    for field in fields:
        if form not in WHOLE_FORMATS:
            if field.source == VALUE:
                return (
                    f"{field.name!r} is the whole value, and format: {form} reads fields of it; name one, or write "
                    "format: text"
                )
        elif not is_envelope(field.source):
            read = field.as_read
            if field.source != VALUE:
                return (
                    f"{field.name!r} is read from a field of the value, and a {form} record has none; write field: "
                    f"{VALUE}, or $key, $header.NAME and the like"
                )
            if read.dtype != "string" or read.shape:
                return f"{field.name!r} is the value, which is one text; write dtype: string, without a shape"
            if read.missing is not None:
                return f"{field.name!r} has a missing value, and an empty record is set aside; leave it out"
    return None
