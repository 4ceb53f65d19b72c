"""The JSON decoder as it is where no code was compiled for the machine."""

import copy

from millrace.pipelines.formats.json.decoder import JsonDecoder
from millrace.pipelines.formats.json.framed import FramedJsonDecoder
from millrace.pipelines.formats.shared.protocol import Decoder


def without_compiled(decoder: Decoder) -> Decoder:
    """Return a decoder that reads JSON by pyarrow's parser alone; one of another format as it is."""
    changed = copy.copy(decoder)
    if isinstance(changed, FramedJsonDecoder):
        changed._inner = copy.copy(changed._inner)
        changed._inner._plain = None
    elif isinstance(changed, JsonDecoder):
        changed._plain = None
    return changed
