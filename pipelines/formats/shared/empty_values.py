"""Values without bytes, which every format refuses: where they are in a chunk, and the others. Pure functions."""

from collections.abc import Sequence
from itertools import filterfalse
from operator import length_hint

import numpy as np

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.protocol import Refusal


def empty_rows(values: Sequence[bytes | None]) -> list[int]:
    """Return the indices of the values that are None or have no bytes, ascending."""
    if all(values):
        return []
    # How far the iterator has come tells the index: to count takes three times as long.
    left, count = iter([*values]), len(values)
    return [count - length_hint(left) - 1 for _ in filterfalse(None, left)]


def without_empty(values: Sequence[bytes | None]) -> tuple[Sequence[bytes], Int64s, list[Refusal]]:
    """Return the values that have bytes, with their indices, and a refusal of each other."""
    empty = empty_rows(values)
    if not empty:
        return values, np.arange(len(values)), []  # type: ignore[return-value]  # none is None
    filled = np.delete(np.arange(len(values)), empty)
    return [*filter(None, values)], filled, [Refusal(index, Reason.EMPTY) for index in empty]
