"""The harness's records with an image beside their numbers, in base64, and images that are bad in many ways.

The model takes no image: its file here drops the pixels again, once they were decoded as a model's that wants them.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from millrace.consumers.reasons import Reason
from tests.faults.harness.forms import EMPTY, JSON, LABEL, Content, Form, Make, Poison
from tests.faults.harness.project import FEATURES

_SIDE = 8
_DROPPING = '''

def preprocess(features, label, weight):
    """Drop the pixels, which the model does not take."""
    return {name: column for name, column in features.items() if name != "photo"}, label, weight
'''


def _part(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(content: Content, side: int = _SIDE) -> bytes:
    """Return a grey image, its brightness by the record."""
    rows = (b"\0" + bytes([int(content["id"]) % 256]) * _SIDE) * _SIDE
    about = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", about) + _part(b"IDAT", zlib.compress(rows)) + _part(b"IEND", b"")


def _record(content: Content) -> bytes:
    return JSON.render({**content, "photo": b64encode(_png(content)).decode()})


def _turned(image: bytes, at: int) -> bytes:
    return image[:at] + bytes([image[at] ^ 1]) + image[at + 1 :]


def _held(change: Callable[[Content], bytes]) -> Make:
    """Return what makes a record whose image was changed."""
    return lambda content: JSON.render({**content, "photo": b64encode(change(content)).decode()})


def _text(text: object) -> Make:
    return lambda content: JSON.render({**content, "photo": text})


_BAD = {
    "half an image": _held(lambda content: _png(content)[:40]),
    "an image without its end": _held(lambda content: _png(content)[:-1]),
    "another bit in the header": _held(lambda content: _turned(_png(content), 20)),
    "another bit in the pixels": _held(lambda content: _turned(_png(content), 50)),
    "fewer rows than stated": _held(lambda content: _png(content, 2 * _SIDE)),
    "a huge image": _held(lambda content: _png(content, 1 << 20)),
    "an image without a pixel": _held(lambda content: _png(content, 0)),
    "the first bytes of a JPEG": _held(lambda _content: b"\xff\xd8\xff\xe0"),
    "a JPEG without a scan": _held(lambda _content: b"\xff\xd8\xff\xe0\0\x04ab\xff\xd9"),
    "a GIF": _held(lambda _content: b"GIF89a\1\0\1\0"),
    "nothing in base64": _text(""),
    "no base64": _text("*** no image ***"),
    "base64 of a text": _held(lambda _content: b"no image"),
}
IMAGES = Form(
    "images",
    {
        "format": "json",
        "features": {**FEATURES, "photo": {"dtype": "uint8", "shape": [4, 4, 1], "image": "base64"}},
        "label": LABEL,
    },
    _record,
    [
        *EMPTY,
        *(Poison(name, Reason.BAD_IMAGE, make) for name, make in _BAD.items()),
        Poison("no image", Reason.MISSING, JSON.render),
        Poison("a null", Reason.MISSING, _text(None)),
        Poison("a number for an image", Reason.WRONG_TYPE, _text(7)),
        Poison("a list for an image", Reason.WRONG_SHAPE, _text(["a"])),
        Poison("half a record", Reason.MALFORMED, lambda content: _record(content)[:60]),
        Poison("a label that is not allowed", Reason.NOT_ALLOWED, lambda content: _record({**content, "y": 0.5})),
    ],
    {"dropping.py": (Path(__file__).parent / "model.py").read_text() + _DROPPING},
    build="./dropping.py:build_model",
)
