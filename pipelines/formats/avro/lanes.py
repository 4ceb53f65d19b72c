"""Lanes: the places in the joined bytes of a chunk at which many values are read at once.

A lane is one place: where it is, where its record ends, and which record that is. Every read moves all lanes by one
value. A lane that would read beyond the end of its record, or reads what Avro does not write, makes its record broken;
the lane then stays in zeros behind the last record, which read as nothing, so the other lanes are not disturbed.

Used on the decode pool's threads; a buffer belongs to one call of a decoder.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s

Mask = npt.NDArray[np.bool_]
Uint64s = npt.NDArray[np.uint64]

_ZEROS = 32
"""Bytes behind the records: a lane there may read the longest single value."""
_STOPS = np.uint64(0x8080808080808080)
_WIDTH = np.uint64(0x0102030405060708)
"""Times 256 to the k, the highest byte of this is k + 1: how many bytes a number has whose last one is byte k."""
_ONE = np.uint64(1)
_WORTH_ALL = 5
"""Where more than one number in this many is longer than a byte, all are read as if they were: picking costs more."""
_STEPS = tuple(
    (np.uint64(shift), np.uint64(low), np.uint64(high))
    for shift, low, high in (
        (1, 0x007F007F007F007F, 0x7F007F007F007F00),
        (2, 0x00003FFF00003FFF, 0x3FFF00003FFF0000),
        (4, 0x000000000FFFFFFF, 0x0FFFFFFF00000000),
    )
)
"""How neighbouring sevens of bits are pushed together, then fourteens, then twenty-eights."""


class Buffer:
    """The values of a chunk, joined, and which records are broken."""

    def __init__(self, values: Sequence[bytes], lengths: Int64s) -> None:
        self.text = b"".join((*values, bytes(_ZEROS)))
        self.data = np.frombuffer(self.text, np.uint8)
        self.ends: Int64s = np.cumsum(lengths)
        self.starts: Int64s = self.ends - lengths
        self.zeros = len(self.text) - _ZEROS
        """Where lanes of broken records stay."""
        self.broken: Mask = np.zeros(len(values), bool)
        self.breaks = 0
        """How often records broke; lanes compare it to learn that another lane broke theirs."""
        self.shows: dict[str, npt.NDArray[np.uint8]] = {}
        """The greatest fault of each record, by source, that its types show."""
        self.overflows: dict[str, Mask] = {}
        """The records with a finite number that is too large for the type in which it is read, by source."""
        self._typed: dict[str, npt.NDArray[np.generic]] = {}

    def at_any_byte(self, dtype: str) -> npt.NDArray[np.generic]:
        """Return a view whose item i is the value of that dtype that begins at byte i."""
        if dtype not in self._typed:
            count = len(self.data) - np.dtype(dtype).itemsize + 1
            self._typed[dtype] = np.ndarray((count,), dtype, self.data, 0, (1,))
        return self._typed[dtype]

    @cached_property
    def last_bytes(self) -> Int64s:
        """Where a number of varying length may end: the bytes below 128."""
        return np.flatnonzero(self.data < 0x80)

    def show(self, source: str, records: Int64s, fault: int) -> None:
        """Note a fault of the types of these records."""
        shown = self.shows.setdefault(source, np.zeros(len(self.broken), np.uint8))
        shown[records] = np.maximum(shown[records], np.uint8(fault))

    def overflow(self, source: str, records: Int64s) -> None:
        """Note that a number of these records is too large."""
        self.overflows.setdefault(source, np.zeros(len(self.broken), bool))[records] = True


class Lanes:
    """Places that are read together."""

    __slots__ = ("_known", "buffer", "end", "even", "pos", "record")

    def __init__(self, buffer: Buffer, pos: Int64s, end: Int64s, record: Int64s, *, even: int | None = None) -> None:
        self.buffer, self.pos, self.end, self.record = buffer, pos, end, record
        self.even = even
        """The distance between any two neighbours, which lets values be viewed and not gathered; None if it differs."""
        self._known = buffer.breaks

    def __len__(self) -> int:
        return len(self.pos)

    def at(self, which: Int64s) -> "Lanes":
        """Return some of the lanes, as copies."""
        return Lanes(self.buffer, self.pos[which], self.end[which], self.record[which])

    def adopt(self, which: Int64s, part: "Lanes") -> None:
        """Go on from where copies of some of the lanes have arrived."""
        self.pos[which], self.end[which] = part.pos, part.end
        self.bury()

    def bury(self) -> None:
        """Send the lanes of records that broke elsewhere behind the records."""
        if self._known != self.buffer.breaks:
            self._known = self.buffer.breaks
            gone = self.buffer.broken[self.record]
            self.pos[gone] = self.end[gone] = self.buffer.zeros
            self.even = None

    def kill(self, bad: Mask) -> None:
        """Break the records of these lanes."""
        which = np.flatnonzero(bad)
        records = self.record[which]
        if not self.buffer.broken[records].all():
            self.buffer.broken[records] = True
            self.buffer.breaks += 1
        self.pos[which] = self.end[which] = self.buffer.zeros
        self.even = None

    def need(self, size: int) -> None:
        """Break the records that do not have so many bytes left."""
        if self.even is not None and len(self):
            if self.pos[0] + size <= self.end[0]:
                return
            self.kill(np.ones(len(self), bool))
            return
        short = self.end - self.pos < size
        if np.count_nonzero(short):
            self.kill(short)

    def move(self, sizes: Int64s) -> None:
        """Move each lane by its own number of bytes; a negative one, or too many, breaks the record."""
        self.even = None
        # Without its sign a negative size is greater than any that is left. No lane stands behind its end, but those of
        # broken records, whose sizes are 0.
        bad = sizes.view(np.uint64) > (self.end - self.pos).view(np.uint64)
        if np.count_nonzero(bad):
            self.kill(bad)
            sizes = np.where(bad, 0, sizes)
        self.pos += sizes

    def over(self, size: int) -> None:
        """Move all lanes by so many bytes."""
        self.need(size)
        self.pos += size

    def gather(self, dtype: str, offset: int = 0) -> npt.NDArray[np.generic]:
        """Return the values of this dtype at the lanes, or so many bytes behind, without moving. See `need` first."""
        if self.even is not None and len(self):
            first = int(self.pos[0]) + offset
            return np.ndarray((len(self),), dtype, self.buffer.data, first, (self.even,)).copy()
        at = self.pos + offset if offset else self.pos
        if self.buffer.breaks:
            at = np.minimum(at, self.buffer.zeros)
        values: npt.NDArray[np.generic] = self.buffer.at_any_byte(dtype)[at]
        return values

    def number(self) -> Int64s:
        """Read an `int` or a `long`."""
        raw = self._raw()
        return (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)

    def _raw(self) -> Uint64s:
        if self.buffer.breaks:
            # A lane of a broken record may have been moved beyond the zeros.
            np.minimum(self.pos, self.buffer.zeros, out=self.pos)
        # Behind a record's end is another one, or zeros: the bytes can be read before it is known whose they are.
        first = self.buffer.data[self.pos]
        long = first >= 0x80
        longer = np.count_nonzero(long)
        value, width = first.astype(np.uint64), np.ones(len(self) if longer else 1, np.int64)
        if longer * _WORTH_ALL > len(self):
            value, width = self._long(self.pos)
        elif longer:
            which = long.nonzero()[0]
            value[which], width[which] = self._long(self.pos[which])
        self.even = None
        short = self.end - self.pos < width
        if np.count_nonzero(short):
            self.kill(short)
            value[short] = 0
            width = np.where(short, 0, width)
        self.pos += width
        return value

    def _long(self, pos: Int64s) -> tuple[Uint64s, Int64s]:
        """Return the numbers of more than one byte, and how many bytes each has: beyond any record where it is none.

        Eight bytes are one word; the bit that ends the number is the lowest one that `_STOPS` shows, and three steps
        push the sevens of bits together.
        """
        bits: Uint64s = self.buffer.at_any_byte("<u8")[pos]  # type: ignore[assignment]
        stops = ~bits
        stops &= _STOPS
        # The lowest bit that is set: x & -x.
        last = np.negative(stops)
        last &= stops
        width = ((last >> np.uint64(7)) * _WIDTH >> np.uint64(56)).view(np.int64)
        last -= _ONE
        # Where no bit is set this is all ones, and all eight bytes are of the number.
        bits &= last
        bits &= ~_STOPS
        for shift, low, upper in _STEPS:
            moved = bits & upper
            moved >>= shift
            bits &= low
            bits |= moved
        longest = (stops == 0).nonzero()[0]
        if len(longest):
            data, at = self.buffer.data, pos[longest]
            ninth, tenth = data[at + 8].astype(np.uint64), data[at + 9].astype(np.uint64)
            more = ninth >= 0x80
            high = ((ninth & np.uint64(0x7F)) << np.uint64(56)) | np.where(more, tenth << np.uint64(63), np.uint64(0))
            bits[longest] |= high
            # The tenth byte has room for one bit.
            width[longest] = np.where(more, np.where(tenth > 1, np.iinfo(np.int64).max, 10), 9)
        return bits, width


def lanes_of(buffer: Buffer, records: Int64s, header: int, size: int | None) -> Lanes:
    """Return a lane at the beginning of each of these records, behind a header of so many bytes.

    `size`: what is left of every record has exactly so many bytes, where the schema says so; others are broken.
    """
    lanes = Lanes(buffer, buffer.starts[records] + header, buffer.ends[records], records.copy())
    if size is not None:
        other = lanes.end - lanes.pos != size
        if other.any():
            lanes.kill(other)
        apart = np.diff(lanes.pos)
        if not other.any() and len(lanes) and (apart == size + header).all():
            lanes.even = size + header
    return lanes
