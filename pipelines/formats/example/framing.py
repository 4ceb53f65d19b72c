"""Which texts can be handed to TensorFlow as Examples, and which of them it may refuse: found for all at a time.

Pure functions of the records' bytes, with numpy over the joined bytes of a chunk. What may be refused is a hint; what
may end the process is not: TensorFlow reserves as much memory as a list says that it is long, before it looks whether
the record is that long, and a length of 2^31 or more ends the process. It does so for two kinds of list: a text in a
list of texts, which it reserves without touching, and packed floats, which it sets to zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
FLOATS, INTS, TEXTS = "float_list", "int64_list", "bytes_list"
_FEATURES, _FLOATS, _VALUE, _MORE = 0x0A, 0x12, 0x12, 0x80
"""The tag of an Example's one field, and of what a list holds; of a list of floats; of a feature, behind its name. A
byte of a number that is not its last is 0x80 or more."""
_LONGEST, _LONGEST_NUMBER = 4, 10
_PIECE = 1 << 17
"""Bytes that are looked at at once: temporaries as large as a chunk cost more than the look."""
_BEFORE, _BEHIND = 16, 8
"""Zeros around the joined records, so that all places that are looked at exist."""
_TAGS = {TEXTS: 0x0A, FLOATS: 0x12, INTS: 0x1A}


@dataclass(frozen=True, slots=True)
class JoinedExamples:
    """Records as one array of bytes, with zeros before and behind."""

    codes: Bytes
    begins: Int64s
    lengths: Int64s

    @classmethod
    def of(cls, texts: Sequence[bytes | None]) -> "JoinedExamples":
        """Join texts; None counts as an empty one."""
        there = cast("Sequence[bytes]", texts)
        try:
            lengths = np.fromiter(map(len, there), np.int64, len(there))
        except TypeError:
            there = [text or b"" for text in texts]
            lengths = np.fromiter(map(len, there), np.int64, len(there))
        codes = np.frombuffer(b"".join((bytes(_BEFORE), *there, bytes(_BEHIND))), np.uint8)
        return cls(codes, np.cumsum(lengths) - lengths + _BEFORE, lengths)

    def owners(self, places: Int64s) -> Int64s:
        """Return the records that these places are in."""
        owners: Int64s = self.begins.searchsorted(places, "right") - 1
        return owners


def framed(joined: JoinedExamples) -> Mask:
    """Return which records are one field of the Example and nothing else, by its length.

    TensorFlow is lenient in this: it reads some that were cut short.
    """
    codes, at, lengths = joined.codes, joined.begins, joined.lengths
    good: Mask = codes[at] == _FEATURES
    more, said, taken = good, np.ones(len(lengths), np.int64), 0
    while taken < _LONGEST and more.any():
        code = codes[at + (taken + 1)].astype(np.int64)
        said += np.where(more, 1 + ((code & (_MORE - 1)) << 7 * taken), 0)
        more, taken = more & (code >= _MORE), taken + 1
    good &= ~more & (said == lengths)
    return good


def far_lists(joined: JoinedExamples) -> Int64s:
    """Return the records that may hold a list which states a length far beyond the record, ascending.

    A text of 2^28 bytes or more, or packed floats of 2^21 bytes or more. A few records have such bytes by chance.
    """
    codes = joined.codes
    tags = np.concatenate(
        [_long_numbers(codes[at : at + _PIECE + _LONGEST]) + at for at in range(0, len(codes), _PIECE)]
    )
    if not len(tags):
        return tags
    last = codes[tags - 1] < _MORE
    back = tags - 2
    for _ in range(_LONGEST_NUMBER - 1):
        back = back - (codes[back] >= _MORE)
    floats = last & (codes[back] == _FLOATS)
    tags = tags[floats | (codes[tags + _LONGEST] >= _MORE)]
    owners = joined.owners(tags)
    ends = joined.begins[owners] + joined.lengths[owners]
    return np.unique(owners[tags + _LONGEST - 1 < ends])


def _long_numbers(codes: Bytes) -> Int64s:
    """Return the places of a list's tag that three bytes of a number follow which are not its last."""
    runs = codes[1:-3] & codes[2:-2]
    runs &= codes[3:-1]
    far = runs >= _MORE
    far &= codes[:-_LONGEST] == _FEATURES
    return np.flatnonzero(far)


class Kinds:
    """The features that a schema asks for, each with the kind of list that is read from it."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._tags = [(*_tail(name), _TAGS[kind]) for name, kind in kinds.items()]
        self._last = np.zeros(256, np.bool_)
        self._last[[name.encode()[-1] for name in kinds]] = True

    def unlike(self, joined: JoinedExamples) -> Int64s:
        """Return the records in which a feature of such a name seems to be a list of another kind, ascending."""
        codes = joined.codes
        values = np.flatnonzero(codes[:-_BEHIND] == _VALUE)
        values = values[self._last[codes[values - 1]]]
        words = np.ndarray((len(codes) - 7,), "<u8", codes, strides=(1,))
        tails = words[values - 7]
        found = list[Int64s]()
        for tail, mask, tag in self._tags:
            named = values[tails & mask == tail]
            kinds = codes[named + 2 + (codes[named + 1] >= _MORE)]
            found.append(named[kinds != tag])
        return np.unique(joined.owners(np.concatenate(found)))


def _tail(name: str) -> tuple[np.uint64, np.uint64]:
    """Return the last bytes up to a feature's value, behind its name, as a number, and which of its bits count."""
    key = name.encode()
    spelt = (bytes((_FEATURES, len(key) & 0x7F)) if len(key) < _MORE else b"") + key + bytes((_VALUE,))
    spelt = spelt[-8:]
    free = 8 - len(spelt)
    return np.uint64(int.from_bytes(bytes(free) + spelt, "little")), np.uint64((1 << 64) - (1 << 8 * free))
