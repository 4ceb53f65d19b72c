"""Sequences of the harness's users, found in plain Python over the whole log, and a number for each of them."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millrace.app.tools.traffic.single_writer import Verdict
from millrace.consumers.reasons import Reason
from tests.faults.harness.records import USERS

LENGTH = 6
FACTORS = tuple(pow(2 * at + 3, 17, 2**63) | 1 for at in range(LENGTH + 1))
"""What the ids of a sequence, and how many they are, are multiplied by."""
_DECODES = (None, Reason.UPDATE_NOT_FINITE, Reason.STEP_RAISED)
_WRAP = 2**64


def numbers_of(verdicts: Sequence[Verdict], keys: int) -> Mapping[int, int]:
    """Return the number of the sequence that ends with each offset; so many users are remembered at once."""
    held, found = OrderedDict[int, list[int]](), dict[int, int]()
    for offset, verdict in enumerate(verdicts):
        if verdict not in _DECODES:
            continue
        user = offset * offset % USERS
        if user not in held and len(held) == keys:
            held.popitem(last=False)
        held.setdefault(user, []).append(offset)
        held.move_to_end(user)
        ids = held[user][-LENGTH:]
        counted = [*[0] * (LENGTH - len(ids)), *ids, len(ids)]
        found[offset] = sum(id_ * factor for id_, factor in zip(counted, FACTORS, strict=True)) % _WRAP
    return found


def wrong_sequences(table: Any, verdicts: Sequence[Verdict], keys: int) -> int:
    """Return how many records of a partition were learnt with another sequence, or though they are in none.

    `table` holds by id how often a record was learnt, and the sum of the numbers of its sequences.
    """
    expected = numbers_of(verdicts, keys)
    wrong = 0
    for id_ in np.flatnonzero(table[:, 0]).tolist():
        times, total = table[id_].tolist()
        wrong += id_ not in expected or total % _WRAP != times * expected[id_] % _WRAP
    return wrong
