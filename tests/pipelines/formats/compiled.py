"""Decoders as they are where no code was compiled for the machine."""

import copy

from millrace.pipelines.formats.csv.decoder import CsvDecoder
from millrace.pipelines.formats.json.decoder import JsonDecoder
from millrace.pipelines.formats.json.framed import FramedJsonDecoder
from millrace.pipelines.formats.shared.protocol import Decoder
from tests.pipelines.formats.decoder_conformance import outcomes, same


def without_compiled(decoder: Decoder) -> Decoder:
    """Return a decoder that reads JSON or CSV by pyarrow alone; one of another format as it is."""
    changed = copy.copy(decoder)
    if isinstance(changed, FramedJsonDecoder):
        changed._inner = copy.copy(changed._inner)
        changed._inner._plain = None
    elif isinstance(changed, JsonDecoder | CsvDecoder):
        changed._plain = None
    return changed


def assert_alike(decoder: Decoder, values: list[bytes | None]) -> None:
    """Assert that each value has the outcome that it has by pyarrow alone."""
    pairs = zip(values, outcomes(decoder, values), outcomes(without_compiled(decoder), values), strict=True)
    for value, here, there in pairs:
        assert same(here, there), f"{value!r}: {here}, by pyarrow {there}"
