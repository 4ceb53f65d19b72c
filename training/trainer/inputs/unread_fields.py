"""Fields that nobody reads: which ones the records hold, of which types, and since when one is there or is gone.

A field has appeared if none of the records before held it, and so many of those since do that chance does not explain
it. It has vanished if none does any more, likewise, and it was never away as long before. Names and types are kept, and
no value. Used on the trainer's thread.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.rounded import cut_list
from millrace.pipelines.formats.shared.field_types import OBJECT

MOST_FIELDS = 256
_MOST_WITHIN = 50
"""Fields within one object; of more it is a map, whose names are data."""
_MOST_TYPES = 4
_NAMED = 5
"""Fields that a text names."""
_RARE = 14.0
"""The logarithm of how seldom chance alone makes a field look as if it had appeared or vanished: a millionth."""
_OWN = 1.5
_LASTS = 8192
"""Records looked at after which what has appeared, or has vanished, is how the records are."""
_PARENT = re.compile(r"(.*)(?<!\\)\.", re.DOTALL)
_DOT = re.compile(r"(?<!\\)\.")
Place = tuple[str, int, int]
"""The partition, the offset and the event time in milliseconds of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadField:
    """A field that nobody reads."""

    source: str
    types: Mapping[str, int]
    """How many of the records looked at hold it, by type."""
    first: int
    """The number of the first record looked at that holds it, and of the last one."""
    last: int
    began: Place
    """The first one, and the last one."""
    ended: Place
    longest: int = 0
    """The most records looked at in succession that did not hold it, between two that did."""
    appeared: int | None = None
    """The number of the record looked at when it was found to have appeared, or vanished; None if it is as before."""
    vanished: int | None = None

    @property
    def records(self) -> int:
        """How many hold it."""
        return sum(self.types.values())

    @property
    def share(self) -> float:
        """The share of the records that hold it, from the first to the last that does."""
        return self.records / (self.last - self.first + 1)

    def held(self, number: int, place: Place, kind: str) -> "UnreadField":
        """Return it after another record that holds it."""
        types = dict(self.types)
        kind = kind if kind in types or len(types) < _MOST_TYPES else OBJECT
        types[kind] = types.get(kind, 0) + 1
        away = max(self.longest, number - self.last - 1)
        return replace(self, types=types, last=number, ended=place, longest=away, vanished=None)


def _sure(records: int, within: int, without: int) -> bool:
    """Return whether it is no chance that of a number of records all lie in one stretch, and none in the other."""
    return records * math.log1p(without / max(1, within)) >= _RARE


def named(fields: Sequence[UnreadField]) -> str:
    """Return some of the fields, each with its types."""
    return cut_list([f"{one.source} ({' or '.join(sorted(one.types))})" for one in fields], _NAMED)


class UnreadFields:
    """Those of one model's records."""

    def __init__(self, read: Collection[str] = ()) -> None:
        """`read` are the sources that are read now."""
        self._read = frozenset(read)
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.records = 0
        """Records that were looked at."""
        self._fields: dict[str, UnreadField] = {}
        self._maps: dict[str, None] = {}
        """Objects of so many names that they are maps."""

    def note(self, place: Place, types: Mapping[str, str]) -> None:
        """Take in a record that was looked at."""
        number, self.records = self.records, self.records + 1
        for one in types.items():
            # Each anew, as the field before it may have made a map of both.
            source, kind = self._placed(*one)
            known = self._fields.get(source)
            if known is not None:
                if known.last < number:
                    self._fields[source] = known.held(number, place, kind)
            elif len(self._fields) < MOST_FIELDS:
                self._fields[source] = UnreadField(
                    source=source, types={kind: 1}, first=number, last=number, began=place, ended=place
                )
                self._fold(source)

    def _placed(self, source: str, kind: str) -> tuple[str, str]:
        parent = _PARENT.match(source)
        while parent is not None:
            if parent[1] in self._maps:
                return parent[1], OBJECT
            parent = _PARENT.match(parent[1])
        return source, kind

    def _fold(self, source: str) -> None:
        """Make one field of each object around this one that has too many names."""
        while (match := _PARENT.match(source)) is not None:
            source = match[1]
            inside = [one for one in self._fields if one.startswith(f"{source}.")]
            if len({_DOT.split(one[len(source) + 1 :], 1)[0] for one in inside}) > _MOST_WITHIN:
                fields = [self._fields.pop(name) for name in inside]
                first, last = min(fields, key=lambda one: one.first), max(fields, key=lambda one: one.last)
                # A map within a map is part of it.
                maps = [one for one in self._maps if not one.startswith(f"{source}.")]
                self._maps = dict.fromkeys([*maps, source])
                self._fields[source] = replace(
                    first, source=source, types={OBJECT: first.records}, last=last.last, ended=last.ended
                )

    def news(self) -> tuple[list[UnreadField], list[UnreadField]]:
        """Return the fields that are found to have appeared, and to have vanished, since this was asked last."""
        appeared, vanished = list[UnreadField](), list[UnreadField]()
        for source, one in self._fields.items():
            before, since, away = one.first, self.records - one.first, self.records - 1 - one.last
            if one.appeared is None and one.longest < before and _sure(one.records - 1, since, before):
                self._fields[source] = replace(one, appeared=self.records)
                appeared.append(one)
            elif one.vanished is None and away > _OWN * one.longest and _sure(one.records - 1, since - away, away):
                self._fields[source] = replace(one, vanished=self.records)
                vanished.append(one)
        return appeared, vanished

    def all(self) -> list[UnreadField]:
        """Return all of them: what is news first, then by name."""
        every = [
            replace(one, appeared=None) if self.records - (one.appeared or 0) > _LASTS else one
            for one in self._fields.values()
        ]
        return sorted(every, key=lambda one: (one.vanished is None, one.appeared is None, one.source))

    def array(self) -> npt.NDArray[np.uint8]:
        """Return all as an array of a checkpoint."""
        facts = {
            "records": self.records,
            "fields": [asdict(one) for one in self._fields.values()],
            "maps": [*self._maps],
        }
        return np.frombuffer(json.dumps(facts).encode(), np.uint8)

    def load(self, array: Any) -> None:
        """Take back what `array` has returned; without it, as of an older checkpoint, nothing is known."""
        self.clear()
        if array is None:
            return
        facts = json.loads(np.asarray(array, np.uint8).tobytes())
        self.records, self._maps = int(facts["records"]), dict.fromkeys(facts["maps"])
        for one in facts["fields"]:
            if one["source"] not in self._read:
                places = {name: tuple(one[name]) for name in ("began", "ended")}
                self._fields[one["source"]] = UnreadField(**{**one, **places})
