"""Images in records: what a record holds is brought to the bytes of a JPEG or a PNG that is whole. Pure.

The check is cheap, and comes before the pixels are asked for: the image says what it is, how large it is, and where it
ends; of a PNG every part has its checksum. So bytes that were cut short, and an image that would unfold to more than
`MOST_PIXELS`, never reach the library. What follows an image's end is skipped, as cameras write there.
"""

import re
import struct
import zlib
from base64 import b64decode
from typing import Literal

ImageCoding = Literal["bytes", "base64"]
MOST_PIXELS = 1 << 25
"""33 million: more than a phone takes, and 100 MB once it is decoded."""
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_DATA_URL = re.compile(rb"data:image/[\w.+-]+;base64,", re.IGNORECASE)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_SPACES = b"\r\n \t"
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a length."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the segment that has the size."""
_SCAN, _END = 0xDA, b"\xff\xd9"
_HEADER = 13
_GREY = frozenset({0, 4})
"""Colour types of a PNG, without and with transparency; the others have colours."""


def image_in(held: bytes, coding: ImageCoding) -> bytes | None:
    """Return the image that a record holds; None where it is no JPEG or PNG that is whole, or a huge one."""
    image = held if coding == "bytes" else _from_base64(held)
    return image if image is not None and _stated_shape(image) is not None else None


def image_shape(held: bytes, coding: ImageCoding) -> tuple[int, int, int] | None:
    """Return height, width and channels, 1 for grey or 3 for colour; None where `image_in` gives None."""
    image = held if coding == "bytes" else _from_base64(held)
    return None if image is None else _stated_shape(image)


def looks_like_an_image(held: bytes) -> bool:
    """Return whether bytes begin as a JPEG or a PNG."""
    return held.startswith((_JPEG, _PNG))


def _stated_shape(image: bytes) -> tuple[int, int, int] | None:
    shape = _jpeg_shape(image) if image.startswith(_JPEG) else _png_shape(image) if image.startswith(_PNG) else None
    return shape if shape is not None and 0 < shape[0] * shape[1] <= MOST_PIXELS else None


def _from_base64(text: bytes) -> bytes | None:
    """Return what base64 says, in either alphabet, with or without padding, line breaks and a data URL's beginning."""
    url = _DATA_URL.match(text, 0, 100)
    plain = text[url.end() if url else 0 :].translate(_URL_SAFE, _SPACES).rstrip(b"=")
    try:
        return b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return None


def _jpeg_shape(image: bytes) -> tuple[int, int, int] | None:
    """Return the shape that a JPEG states; None where it has no size, no scan, or no end behind its scan."""
    at, shape = 2, None
    while at + 4 <= len(image):
        if image[at] != 0xFF:
            return None
        marker = image[at + 1]
        if marker == 0xFF or marker in _BARE:
            at += 1 if marker == 0xFF else 2
            continue
        length = int.from_bytes(image[at + 2 : at + 4])
        if marker == _SCAN:
            return shape if image.find(_END, at + 2 + length) >= 0 else None
        if marker in _FRAMES and at + 9 <= len(image):
            height, width = struct.unpack_from(">HH", image, at + 5)
            shape = height, width, 1 if image[at + 9 : at + 10] == b"\1" else 3
        at += 2 + max(2, length)
    return None


def _png_shape(image: bytes) -> tuple[int, int, int] | None:
    """Return the shape that a PNG states; None where a part is not whole, or not what its checksum says."""
    at, shape = len(_PNG), None
    while at + 12 <= len(image):
        length = int.from_bytes(image[at : at + 4])
        kind, behind = image[at + 4 : at + 8], at + 8 + length
        checksum = image[behind : behind + 4]
        if len(checksum) < 4 or zlib.crc32(memoryview(image)[at + 4 : behind]) != int.from_bytes(checksum):
            return None
        if (kind == b"IHDR") != (shape is None):
            return None
        if shape is None:
            if length != _HEADER:
                return None
            width, height = struct.unpack_from(">II", image, at + 8)
            shape = height, width, 1 if image[at + 17] in _GREY else 3
        if kind == b"IEND":
            return shape
        at = behind + 4
    return None
