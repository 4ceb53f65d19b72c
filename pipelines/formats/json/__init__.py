"""JSON: one object a record, bare or in Confluent's wire format."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millrace.pipelines.formats.draft import DraftSample, Look, Row, fitting
from millrace.pipelines.formats.format import HEADER, Format, Glance, late
from millrace.pipelines.formats.shared.field_types import field_types
from millrace.pipelines.formats.shared.made_up import made_up_records
from millrace.pipelines.formats.shared.paths import asked_of, distinct_fields, parse
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema, Schemas

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
"""What a key holds only behind a backslash."""


class JsonFormat(Format):
    """Objects."""

    name = "json"
    registry_kind = "JSON"
    names_fields = True

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        asked_of(distinct_fields(schema))

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        if schemas is None:
            decoder: Decoder = late("json.decoder:JsonDecoder")(schema)
        else:
            decoder = late("json.framed:FramedJsonDecoder")(schema, schemas)
        return decoder

    def glance(self, source: str, texts: frozenset[bytes], *, framed: bool) -> Glance | None:
        name, *more = parse(source).steps
        if more or name.lists or _ESCAPED.search(name.name) is not None:
            return None
        glance: Glance = late("json.glance:JsonGlance")(name.name, texts, framed=framed)
        return glance

    def schema_name(self, header: bytes, schemas: Schemas) -> str | None:
        registered = schemas.get(int.from_bytes(header[1:]))
        if registered is None or registered.kind != self.registry_kind:
            return None
        return str(late("json.framed:name_of")(registered.text))

    def types(self, value: bytes, *, framed: bool) -> Mapping[str, str] | None:
        try:
            record = json.loads(value[HEADER:] if framed else value)
        except (ValueError, RecursionError):
            return None
        return field_types(record) if isinstance(record, dict) else None

    def draft(self, sample: DraftSample) -> Look | None:
        def read(value: bytes) -> Row | None:
            if sample.registered and value[:1] != b"\0":
                return None
            try:
                row = json.loads(value[HEADER:] if sample.registered else value)
            except (ValueError, RecursionError):
                return None
            return row if isinstance(row, dict) else None

        return fitting(self.name, sample, read)

    def generate(
        self,
        schema: Schema,
        random: np.random.Generator,
        count: int,
        settings: Any = None,
    ) -> Sequence[bytes]:
        return [json.dumps(record).encode() for record in made_up_records(schema, random, count)]
