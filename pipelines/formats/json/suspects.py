"""Which records of a text have made the parser refuse it, where it does not say: found for all records at a time.

Pure functions. What they find are hints, as the rows are that the parser names: a record is refused on the word of
`pipelines.formats.json.decoder` alone, and what is not found here is found by halving.
"""

import re
from collections.abc import Collection, Sequence

import numpy as np

from millrace.consumers.records import Int64s

_OPENS, _CLOSES, _SPACE = ord("{"), ord("}"), ord(" ")


def with_several_values(text: bytes | memoryview, begins: Int64s) -> list[int]:
    """Return the records in which a value may follow another one: where `{` follows `}`, or space does."""
    codes = np.frombuffer(text, np.uint8)
    if len(codes) < 2:  # an empty record
        return []
    after = codes[1:]
    suspect = (after == _OPENS) | (after <= _SPACE)
    suspect &= codes[:-1] == _CLOSES
    suspect[begins[1:] - 2] = False
    return [int(row) for row in np.unique(begins.searchsorted(np.flatnonzero(suspect), "right") - 1)]


def with_number(records: Sequence[bytes], text: bytes, begins: Int64s, number: bytes, names: "WholeNames") -> list[int]:
    """Return the records that hold this number, and those in which a field of whole numbers holds a fraction."""
    found = {row for row, record in enumerate(records) if number in record}
    if names.fraction is not None:
        places = np.array([match.start() for match in names.fraction.finditer(text)], np.int64)
        found.update((begins.searchsorted(places, "right") - 1).tolist())
    return sorted(found)


class WholeNames:
    """The names of the fields that are read as whole numbers."""

    def __init__(self, names: Collection[str]) -> None:
        spelt = b"|".join(re.escape(name.encode()) for name in sorted(names))
        self.fraction = re.compile(rb'"(?:' + spelt + rb')"\s*+:\s*+-?\d++[.eE]') if names else None
        """Finds a fraction, or an exponent, in a field of such a name."""
