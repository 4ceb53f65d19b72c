"""TFRecord files as bytes: whether one is compressed, its first record, and how many records it has.

The count is taken by walking the frames, apart from the code that reads the same files later: so what an epoch has
visited is compared with something else than itself. A file that ends inside a record is found before all else. Loads no
TensorFlow: the command line counts before it loads it.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, cast

from millrace.consumers.errors import ConfigError

_GZIP = b"\x1f\x8b"
_PIECE = 1 << 22
_HEADER, _FOOTER = 12, 4
"""The length and its checksum before each record; the checksum of the record after it."""


def compression_of(path: Path) -> str:
    """Return GZIP or nothing, as tf.data calls it, by the first bytes of the file."""
    try:
        with path.open("rb") as file:
            return "GZIP" if file.read(2) == _GZIP else ""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def count_records(path: Path) -> int:
    """Return the number of records; ConfigError where the file ends inside one, or is no TFRecord file."""
    return sum(_frames(path))


def first_record(path: Path) -> bytes | None:
    """Return the first record; None where the file has none."""
    with closing(_open(path)) as file:
        header = file.read(_HEADER)
        return file.read(struct.unpack_from("<Q", header)[0]) if len(header) == _HEADER else None


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if compression_of(path) else path.open("rb")


def _frames(path: Path) -> Iterator[int]:
    """Yield how many records begin in each piece of the file."""
    total = 0
    need = 0
    """The bytes of the present record that are still to come."""
    rest = b""
    unpack = struct.Struct("<Q").unpack_from
    try:
        with closing(_open(path)) as file:
            while piece := file.read(_PIECE):
                data, at, count = rest + piece, need, 0
                size = len(data)
                while at + _HEADER <= size:
                    at += _HEADER + int(unpack(data, at)[0]) + _FOOTER
                    count += 1
                rest, need = (b"", at - size) if at >= size else (data[at:], 0)
                total += count
                yield count
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path} cannot be read after record {total}: {error}; leave it out by --skip-damaged, or make it again"
        ) from error
    if need or rest:
        raise ConfigError(
            f"{path} ends inside record {total}, or is no TFRecord file; leave it out by --skip-damaged, or make it "
            "again"
        )
