"""The stream: visits to a shop, and whether they bought. What sells changes with every drift. Pure.

When the rule changes is known by the stream's own clock, which counts records, so a restart continues in it: two abrupt
drifts and a gradual one in the first five minutes, and the same again in each five that follow.

A record and its second on the stream's clock are functions of its partition and offset only: a restarted writer
continues the same stream, and a checker knows what must have been learnt. Each rule is orthogonal to the one before it,
so what was learnt before a drift is worth nothing after it. One record in a thousand is cut short, so that there is
something to set aside.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s

TOPIC = "visits"
DEAD_LETTERS = "visits.dead-letters"
PARTITIONS = 4
RECORDS_PER_S = 5000
ITEMS = (
    *("apron", "basket", "candle", "drill", "easel", "flute", "globe", "hammock"),
    *("inkwell", "jigsaw", "kettle", "lantern", "mirror", "notebook", "oven", "puzzle"),
    *("quilt", "racket", "scarf", "teapot", "umbrella", "vase", "whistle", "zither"),
)

_SEED = 20_260_101
_CHUNK = 250
"""Offsets that are drawn together."""
_DECISIVE = 9.0
"""How strongly the rule decides: the best guess is right 93 times in 100."""
_BAD_ONE_IN, _BAD_AT = 1000, 500
_CONTINUOUS = 4
CYCLE_S = 300.0
Kind = Literal["abrupt", "gradual"]
_IN_A_CYCLE: tuple[tuple[Kind, float, float], ...] = (("abrupt", 40, 0), ("gradual", 120, 60), ("abrupt", 240, 0))

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A change of the rule."""

    number: int
    """The first is 1; before it holds rule 0, after it the rule of its number."""
    kind: Kind
    begins_s: float
    takes_s: float = 0.0
    """Until the new rule holds alone."""

    @property
    def ends_s(self) -> float:
        """The second at which the new rule holds alone."""
        return self.begins_s + self.takes_s


def drift(number: int) -> Drift:
    """Return the drift with this number, counted from 1."""
    cycle, place = divmod(number - 1, len(_IN_A_CYCLE))
    kind, begins_s, takes_s = _IN_A_CYCLE[place]
    return Drift(number=number, kind=kind, begins_s=cycle * CYCLE_S + begins_s, takes_s=takes_s)


def last_drift(at_s: float) -> Drift | None:
    """Return the drift that began last; None before the first."""
    number = int(at_s // CYCLE_S) * len(_IN_A_CYCLE)
    while drift(number + 1).begins_s <= at_s:
        number += 1
    return drift(number) if number else None


def next_drift(at_s: float) -> Drift:
    """Return the drift that begins next."""
    last = last_drift(at_s)
    return drift(1 if last is None else last.number + 1)


def drifts_between(after_s: float, until_s: float) -> Iterator[Drift]:
    """Give the drifts that begin in this time."""
    coming = next_drift(after_s)
    while coming.begins_s <= until_s:
        yield coming
        coming = drift(coming.number + 1)


def seconds(partition: int, offset: int) -> float:
    """Return the second on the stream's clock at which a record is due."""
    return (offset * PARTITIONS + partition) / RECORDS_PER_S


def first_offset(partition: int, at_s: float) -> int:
    """Return the first offset of a partition that is due at this second or after it."""
    return max(0, -int((partition - at_s * RECORDS_PER_S) // PARTITIONS))


def is_bad(partition: int, offsets: Int64s) -> npt.NDArray[np.bool_]:
    """Return which of these offsets hold a record that must be set aside."""
    bad: npt.NDArray[np.bool_] = (offsets * PARTITIONS + partition) % _BAD_ONE_IN == _BAD_AT
    return bad


def values(partition: int, first: int, count: int) -> list[bytes]:
    """Return the records of these offsets."""
    records: list[bytes] = []
    while len(records) < count:
        chunk, within = divmod(first + len(records), _CHUNK)
        records.extend(_chunk(partition, chunk)[within : within + count - len(records)])
    return records


@lru_cache(maxsize=4 * PARTITIONS)
def _chunk(partition: int, number: int) -> tuple[bytes, ...]:
    """Return the records that are drawn together."""
    random = np.random.default_rng((_SEED, partition, number))
    offsets = np.arange(number * _CHUNK, (number + 1) * _CHUNK, dtype=np.int64)
    item, hour = random.integers(0, len(ITEMS), _CHUNK), random.integers(0, 24, _CHUNK)
    price, discount = random.normal(0.0, 1.0, _CHUNK), random.uniform(0.0, 0.5, _CHUNK)
    # The inputs of a rule: uncorrelated columns with mean square 1, so that orthogonal rules are unrelated.
    items = np.eye(len(ITEMS))[item] * np.sqrt(len(ITEMS))
    angle = hour * np.pi / 12
    others = price, (discount - 0.25) * np.sqrt(48), np.sqrt(2) * np.sin(angle), np.sqrt(2) * np.cos(angle)
    facts = np.column_stack([items, *others])
    odds = _DECISIVE * _liking(offsets, partition, facts)
    bought = random.random(_CHUNK) < 1 / (1 + np.exp(-odds))
    rows = zip(
        item.tolist(),
        np.round(20 * np.exp(0.5 * price), 2).tolist(),
        np.round(discount, 3).tolist(),
        hour.tolist(),
        bought.astype(int).tolist(),
        is_bad(partition, offsets).tolist(),
        strict=True,
    )
    return tuple(_render(*row) for row in rows)


def _render(item: int, price: float, discount: float, hour: int, bought: int, bad: bool) -> bytes:
    text = json.dumps({"item": ITEMS[item], "price": price, "discount": discount, "hour": hour, "bought": bought})
    return (text[: len(text) // 2] if bad else text).encode()


def _liking(offsets: Int64s, partition: int, facts: Floats) -> Floats:
    """Return how well each visit fits the rule, or the mixture of rules, of its second."""
    at_s = (offsets * PARTITIONS + partition) / RECORDS_PER_S
    past = last_drift(float(at_s[0]))
    number = 0 if past is None else past.number
    liking = _by_drift(facts, at_s, past)
    coming = drift(number + 1)
    return np.where(at_s < coming.begins_s, liking, _by_drift(facts, at_s, coming))


def _by_drift(facts: Floats, at_s: Floats, past: Drift | None) -> Floats:
    if past is None:
        return facts @ _rule(0)
    share = np.clip((at_s - past.begins_s) / past.takes_s, 0.0, 1.0) if past.takes_s else np.ones(len(at_s))
    before, after = facts @ _rule(past.number - 1), facts @ _rule(past.number)
    liking: Floats = ((1 - share) * before + share * after) / np.hypot(1 - share, share)
    return liking


@lru_cache(maxsize=16)
def _rule(number: int) -> Floats:
    """Return the weights of a rule: length 1, no item liked on average, orthogonal to the rule before."""
    rule = np.random.default_rng((_SEED, number)).normal(0.0, 1.0, len(ITEMS) + _CONTINUOUS)
    rule[: len(ITEMS)] -= rule[: len(ITEMS)].mean()
    if number:
        before = _rule(number - 1)
        rule -= (rule @ before) * before
    scaled: Floats = rule / np.linalg.norm(rule)
    return scaled
