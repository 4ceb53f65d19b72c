"""The verdicts on JSON in Confluent's wire format, as data: what the tests ask for and `docs/verdicts.md` prints."""

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, RegisteredSchema, Schema
from tests.pipelines.formats.decoder_conformance import Case, Conformance


class Registry:
    """Schemas by number, in memory."""

    def __init__(self) -> None:
        self.schemas = {1: RegisteredSchema("JSON", '{"type": "object"}'), 2: RegisteredSchema("AVRO", '"string"')}

    def get(self, number: int) -> RegisteredSchema | None:
        """Return a schema, or None."""
        return self.schemas.get(number)


SCHEMA = Schema(features=(Field(name="age", source="user.age", dtype="float32"),))
_OBJECT = b'{"user": {"age": 30}}'
_FRAMED = b"\0\0\0\0\1" + _OBJECT
_MALFORMED, _UNKNOWN = (Reason.MALFORMED, None), (Reason.UNKNOWN_SCHEMA, None)
FRAMED_JSON = Conformance(
    name="json with a registry",
    decoder=make_decoder("json", SCHEMA, schemas=Registry()),
    cases=(
        Case("no value", None, (Reason.EMPTY, None)),
        Case("an empty value", b"", (Reason.EMPTY, None)),
        Case("one object", _FRAMED, {"user.age": 30.0}),
        Case("an object without the zero and the schema's number", _OBJECT, _MALFORMED),
        Case("another first byte", b"\1" + _FRAMED[1:], _MALFORMED),
        Case("less than five bytes", _FRAMED[:4], _MALFORMED),
        Case("nothing after the schema's number", _FRAMED[:5], _MALFORMED),
        Case("half an object", _FRAMED[:-1], _MALFORMED),
        Case("two records", _FRAMED * 2, _MALFORMED),
        Case("a field absent", b"\0\0\0\0\1{}", (Reason.MISSING, "user.age")),
        Case("a schema that the registry does not have", b"\0\0\0\0\7" + _OBJECT, _UNKNOWN),
        Case("a schema of another format", b"\0\0\0\0\2" + _OBJECT, _UNKNOWN),
    ),
)
