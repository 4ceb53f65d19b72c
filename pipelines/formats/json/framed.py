"""JSON records in Confluent's wire format: a zero byte, the number of a JSON Schema in the registry, then the object.

The schema says nothing that decoding needs, as the fields of the settings say what is asked of an object; that the
registry has it, and that it is one of JSON, is checked, as in every format with a registry. Of the schema itself only
its name is reported. Runs on the decode pool's threads. What is kept are the names of schemas.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.format import HEADER
from millrace.pipelines.formats.json.decoder import JsonDecoder
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal, SchemaFit, each_known
from millrace.pipelines.schema import Schema, Schemas

_KIND = "JSON"
_LONGEST_NAME = 100
_NAMELESS = "an object"


class FramedJsonDecoder:
    """Decodes what follows the number of the schema."""

    def __init__(self, schema: Schema, schemas: Schemas) -> None:
        self.schema, self._inner, self._schemas = schema, JsonDecoder(schema), schemas
        self._fits: dict[bytes, SchemaFit | None] = {}
        """By a record's first bytes; None where its schema is one of another format."""

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none. Raise NotYetError while a schema is not known."""
        headers = {value[:HEADER] for value in values if value and _is_framed(value)}
        fits = dict(zip(headers, each_known(headers, self._fit), strict=True))
        unknown = {header for header in headers if fits[header] is None}
        own: dict[int, Reason] = {}
        objects: list[bytes | None] = []
        for index, value in enumerate(values):
            if value and not _is_framed(value):
                own[index] = Reason.MALFORMED
            elif value and value[:HEADER] in unknown:
                own[index] = Reason.UNKNOWN_SCHEMA
            objects.append(value[HEADER:] if value and index not in own else None)
        # Each schema with the index of its first record, ascending by that.
        firsts = [
            (fit, next(index for index, value in enumerate(values) if value and _is_framed(value, header)))
            for header, fit in fits.items()
            if fit is not None
        ]
        schemas = tuple(sorted(firsts, key=lambda one: one[1]))
        decoded = replace(self._inner.decode(objects), schemas=schemas)
        if not own:
            return decoded
        refused = tuple(Refusal(one.index, own[one.index]) if one.index in own else one for one in decoded.refused)
        return replace(decoded, refused=refused)

    def _fit(self, header: bytes) -> SchemaFit | None:
        """Return the schema of a header; None where the registry has none of that number, or one of another format."""
        if header not in self._fits:
            number = int.from_bytes(header[1:])
            registered = self._schemas.get(number)
            if registered is None:
                return None  # asked for again: it may be registered later
            fits = registered.kind == _KIND
            self._fits[header] = SchemaFit(number=number, name=name_of(registered.text), fields={}) if fits else None
        return self._fits[header]


def name_of(schema: str) -> str:
    """Return the title of a JSON Schema, or its `$id`."""
    try:
        read = json.loads(schema)
    except (ValueError, RecursionError):
        return _NAMELESS
    names = [read.get("title"), read.get("$id")] if isinstance(read, dict) else []
    return next((name[:_LONGEST_NAME] for name in names if name and isinstance(name, str)), _NAMELESS)


def _is_framed(value: bytes, header: bytes = b"\0") -> bool:
    return value.startswith(header) and len(value) > HEADER
