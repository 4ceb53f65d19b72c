"""When certificates end, read from their PEM file. Pure; the standard library has no public way to read it.

A certificate is a sequence whose first element holds, after an optional version, the serial number, the algorithm and
the issuer, the two times of its validity (RFC 5280, section 4.1).
"""

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----\s*(.*?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _SHORT_TIME, _LONG_TIME = 0x30, 0xA0, 0x17, 0x18
_CENTURY = 50
"""A year of two digits is of this century below it, and of the last from it on."""
_BEFORE_VALIDITY = 3


def first_end(pem: bytes) -> float | None:
    """Return when the first of the file's certificates ends, in seconds since 1970; None where it holds none."""
    try:
        # A list: within a generator an element that is missing would raise another error.
        return min([_end(base64.b64decode(block)) for block in _BLOCK.findall(pem)], default=None)
    except (ValueError, IndexError, StopIteration):  # ValueError also for what is no base64
        return None


def _end(der: bytes) -> float:
    signed = _content(_content(der, _SEQUENCE), _SEQUENCE)
    fields = [element for element in _elements(signed) if element[0] != _VERSION]
    tag, validity = fields[_BEFORE_VALIDITY]
    if tag != _SEQUENCE:
        raise ValueError("no validity")
    _, (kind, text) = _elements(validity)
    return _time(kind, text.decode("ascii"))


def _time(kind: int, text: str) -> float:
    if kind == _SHORT_TIME:
        text = ("20" if int(text[:2]) < _CENTURY else "19") + text
    elif kind != _LONG_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _content(der: bytes, tag: int) -> bytes:
    """Return the content of the first element, which has to have this tag."""
    found, content = next(_elements(der))
    if found != tag:
        raise ValueError("not a certificate")
    return content


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size]), at + size
        yield tag, der[at : at + length]
        at += length
