"""JSON records in Confluent's wire format: a zero byte, the number of a JSON Schema in the registry, then the object.

The schema says nothing that decoding needs, as the fields of the settings say what is asked of an object; that the
registry has it, and that it is one of JSON, is checked, as in every format with a registry. Runs on the decode pool's
threads and holds no state.
"""

from collections.abc import Iterable, Sequence

from consumers.errors import NotYetError
from consumers.reasons import Reason
from pipelines.decoders.json import JsonDecoder
from pipelines.decoders.protocol import DecodedValues, Refusal
from pipelines.schema import JsonLayout, Schema, Schemas

_HEADER = 5
_KIND = "JSON"


class FramedJsonDecoder:
    """Decodes what follows the number of the schema."""

    def __init__(self, schema: Schema, layout: JsonLayout) -> None:
        assert layout.schemas is not None
        self._inner, self._schemas = JsonDecoder(schema), layout.schemas

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""
        return self._inner.schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none. Raise NotYetError while a schema is not known."""
        unknown = _unknown(self._schemas, {value[:_HEADER] for value in values if value and _is_framed(value)})
        own: dict[int, Reason] = {}
        objects: list[bytes | None] = []
        for index, value in enumerate(values):
            if value and not _is_framed(value):
                own[index] = Reason.MALFORMED
            elif value and value[:_HEADER] in unknown:
                own[index] = Reason.UNKNOWN_SCHEMA
            objects.append(value[_HEADER:] if value and index not in own else None)
        decoded = self._inner.decode(objects)
        if not own:
            return decoded
        refused = tuple(Refusal(one.index, own[one.index]) if one.index in own else one for one in decoded.refused)
        return DecodedValues(decoded.kept, decoded.columns, refused, decoded.lengths)


def _is_framed(value: bytes) -> bool:
    return value[0] == 0 and len(value) > _HEADER


def _unknown(schemas: Schemas, headers: Iterable[bytes]) -> set[bytes]:
    """Return the headers whose schemas are none; ask for all of them before NotYetError is raised for one."""
    unknown, lacks = set[bytes](), None
    for header in headers:
        try:
            registered = schemas.get(int.from_bytes(header[1:]))
        except NotYetError as error:
            lacks = error
        else:
            if registered is None or registered.kind != _KIND:
                unknown.add(header)
    if lacks is not None:
        raise lacks
    return unknown
