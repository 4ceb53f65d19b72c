"""The verdicts on images, as data: what the tests ask for and `docs/verdicts.md` prints.

Written by hand, as a PNG is: so that no library decides what the pixels are. The JPEG is one that TensorFlow wrote.
"""

import struct
import zlib
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import DecodedValues, Decoder, Refusal, make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import decode_chunk
from tests.pipelines.formats.decoder_conformance import Case, Conformance, Outcome


def _part(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(rows: Sequence[bytes], width: int, depth: int = 8, colour: int = 0, height: int | None = None) -> bytes:
    """Return a PNG of these rows; colour 0 is grey, 2 is RGB, 4 is grey with alpha."""
    about = struct.pack(">IIBBBBB", width, len(rows) if height is None else height, depth, colour, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", about) + _part(b"IDAT", packed) + _part(b"IEND", b"")


class PixelDecoder:
    """Decodes whole chunks, as images become pixels behind the decoder of the format."""

    def __init__(self, inner: Decoder) -> None:
        self._inner = inner

    @property
    def schema(self) -> Schema:
        """The schema of the pixels."""
        features = tuple(replace(field, image=None) for field in self._inner.schema.features)
        return replace(self._inner.schema, features=features)

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        count = len(values)
        chunk = Chunk(
            partition=Partition("t", 0),
            incarnation=1,
            start=0,
            end=count,
            offsets=np.arange(count),
            timestamps=np.arange(count),
            keys=[None] * count,
            values=[*values],
            headers=[()] * count,
            nbytes=0,
            fetched_at=0.0,
        )
        decoded = decode_chunk(chunk, self._inner)
        named = {**decoded.features, **decoded.labels}
        columns = {field.source: named[field.name] for field in self.schema.fields}
        refused = tuple(Refusal(one.offset, one.reason, one.field) for one in decoded.refused)
        return DecodedValues(decoded.offsets, columns, refused)


SCHEMA = Schema(features=(Field(name="photo", source="$value", dtype="uint8", shape=(2, 2, 1), image="bytes"),))
JPEG = b64decode(
    "/9j/4AAQSkZJRgABAQEBLAEsAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeX"
    "BkeFxlZ2P/wAALCAAEAAMBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AP//Z"
)
PNG = png([b"\x00\x40", b"\x80\xff"], 2)
_BAD: Outcome = (Reason.BAD_IMAGE, "$value")
_GREY: Outcome = {"$value": [[[128], [128]], [[128], [128]]]}


def _turned(image: bytes, at: int) -> bytes:
    return image[:at] + bytes([image[at] ^ 1]) + image[at + 1 :]


IMAGE_CASES = (
    Case("no value", None, (Reason.EMPTY, None)),
    Case("an empty value", b"", (Reason.EMPTY, None)),
    Case("a PNG", PNG, {"$value": [[[0], [64]], [[128], [255]]]}),
    Case("a JPEG", JPEG, _GREY),
    Case("an image of another size", png([b"\x80" * 5] * 7, 5), _GREY),
    Case("a coloured one, for one channel", png([b"\x80" * 6] * 2, 2, colour=2), _GREY),
    Case("sixteen bits a channel", png([b"\x80\x00" * 2] * 2, 2, depth=16), _GREY),
    Case("transparent pixels", png([b"\x80\x00" * 2] * 2, 2, colour=4), _GREY),
    Case("something behind an image's end", PNG + b"\n", {"$value": [[[0], [64]], [[128], [255]]]}),
    Case("a PNG cut short", PNG[:-1], _BAD),
    Case("a PNG with another bit", _turned(PNG, len(PNG) - 20), _BAD),
    Case("a PNG with half of its rows", png([b"\x00\x40"], 2, height=2), _BAD),
    Case("a PNG that states a huge size", png([b"\x00\x40"], 100_000, height=100_000), _BAD),
    Case("a PNG without a pixel", png([], 2), _BAD),
    Case("a JPEG cut short", JPEG[:-2], _BAD),
    Case("a JPEG without a size", JPEG.replace(b"\xff\xc0", b"\xff\xfe"), _BAD),
    Case("the beginning of a JPEG", JPEG[:3], _BAD),
    Case("a GIF", b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\1\0\1\0\0\2\2D\1\0;", _BAD),
    Case("text", b"no image at all", _BAD),
)
IMAGES = Conformance(name="bytes with images", decoder=PixelDecoder(make_decoder("bytes", SCHEMA)), cases=IMAGE_CASES)
