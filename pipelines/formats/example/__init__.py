"""tf.train.Example: decoded by TensorFlow."""

from collections.abc import Mapping
from typing import Any

from millrace.pipelines.formats.draft import DraftSample, Look
from millrace.pipelines.formats.format import Format, late
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema, Schemas


class ExampleFormat(Format):
    """Serialised Examples."""

    name = "example"
    names_fields = True
    looks = 2048
    loads_tensorflow = True

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        decoder: Decoder = late("example.decoder:ExampleDecoder")(schema)
        return decoder

    def types(self, value: bytes, *, framed: bool) -> Mapping[str, str] | None:
        types: Mapping[str, str] | None = late("example.rows:feature_types")(value)
        return types

    def draft(self, sample: DraftSample) -> Look | None:
        look: Look | None = late("example.rows:look_at_examples")(sample)
        return look
