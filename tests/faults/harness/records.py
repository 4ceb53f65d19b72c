"""What the stream holds: records that carry an id of their own, and poison of every kind.

Each record comes with the verdict that it must meet. Its id is the offset that it is about to get, so what the model
adds up of ids and what the trainer believes of offsets can be compared.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from millrace.app.tools.traffic.single_writer import ExpectedPosition, Verdict
from millrace.consumers.reasons import Reason

__all__ = ["POISON", "WIDTH", "ExpectedPosition", "Mixture", "Verdict", "good"]
WIDTH = 4
_OVERFLOWS = 1000.0
"""What the model raises e to: infinity in any float, so no update with this record is finite."""
USERS = 29
"""Keys of records, in each partition."""
NOWHERE = 7_654_321
"""A partition for which the model has no sums: adding to them raises."""


def good(place: ExpectedPosition, random: Random, curse: float = 0.0) -> dict[str, object]:
    """Return the content of a record that can be learnt."""
    x = [round(random.uniform(-1, 1), 3) for _ in range(WIDTH)]
    # Squares come to some of the users more often than to others.
    user = place.offset * place.offset % USERS
    about = {"id": place.offset, "partition": place.partition, "user": user}
    return {"x": x, "curse": curse, **about, "y": float(sum(x) > 0)}


def _rendered(record: Mapping[str, object]) -> bytes:
    return json.dumps(record).encode()


def _with(name: str, value: object) -> Callable[[ExpectedPosition, Random], bytes]:
    return lambda place, random: _rendered({**good(place, random), name: value})


def _half(place: ExpectedPosition, random: Random) -> bytes:
    text = _rendered(good(place, random))
    return text[: len(text) // 2]


def _without_label(place: ExpectedPosition, random: Random) -> bytes:
    record = good(place, random)
    del record["y"]
    return _rendered(record)


def infinite(place: ExpectedPosition, random: Random) -> bytes:
    """Return a record that leaves infinity in the state of `embedded_model.py`, past all guards of its optimizer."""
    return _rendered(good(place, random, -_OVERFLOWS))


POISON: Mapping[Reason, Callable[[ExpectedPosition, Random], bytes | None]] = {
    Reason.MALFORMED: _half,
    Reason.EMPTY: lambda _place, _random: None,
    Reason.MISSING: _without_label,
    Reason.WRONG_TYPE: _with("id", "seven"),
    Reason.WRONG_SHAPE: _with("x", [1.0, 2.0, 3.0]),
    Reason.OUT_OF_RANGE: _with("partition", 2**40),
    Reason.NOT_ALLOWED: _with("y", 0.5),
    Reason.NOT_FINITE: _with("x", [0.0, float("nan"), 0.0, 0.0]),
    Reason.UPDATE_NOT_FINITE: _with("curse", _OVERFLOWS),
    Reason.STEP_RAISED: _with("partition", NOWHERE),
}
"""A record for each reason that a record of JSON may be set aside for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How much of the stream is poison, and of which kinds."""

    share: float = 0.0
    kinds: Sequence[Reason] = tuple(POISON)

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        """Draw one record for this place, and its verdict."""
        if random.random() >= self.share:
            return _rendered(good(place, random)), None
        reason = random.choice(self.kinds)
        return POISON[reason](place, random), reason
