"""Offset counts: the outcome of a range of offsets, as counters that add up to it.

Owns the law of conservation: every offset of a range is learnt, set aside, skipped, filtered, a gap or lost, and
exactly one of these. A slice, a block's span, a partition's account and a process' totals all count by it. Pure; runs
anywhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millrace.consumers.reasons import Reason

K = TypeVar("K", bound=str)


_shapings: set[str] = set()


def skip_under(names: Iterable[str]) -> None:
    """Let offsets be skipped under the names of sections of the settings, as `windows`: the kinds of shaping say so."""
    _shapings.update(names)


def by_shaping(name: str) -> bool:
    """Return whether offsets are skipped under this name by a kind of shaping, and by no command, as `rewind-17`."""
    return name in _shapings


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCounts:
    """How many offsets had which outcome. The mappings are never changed once they are in here, so sums share them."""

    learnt: int = 0
    """Records that a training step has used, or is about to."""
    set_aside: Mapping[Reason, int] = field(default_factory=dict)
    """Records that could not be learnt, by reason: refused by a decoder, or found as culprits by a trainer."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Offsets that a command cuts out of history, by the command's name, or that shaping leaves out, by its setting."""
    filtered: int = 0
    """Records that do not match `records.where`."""
    gaps: int = 0
    """Offsets at which Kafka holds no record: compacted, aborted, control records."""
    lost: int = 0
    """Offsets that retention removed before they were read; anything but 0 is a loss."""
    truncated: Mapping[str, int] = field(default_factory=dict)
    """Records of which a list was cut to its bound, by feature. They count as learnt or set aside like any other."""

    @property
    def offsets(self) -> int:
        """All of the offsets that are counted. The law: this is the length of the range."""
        return self.records + self.gaps + self.lost

    @property
    def records(self) -> int:
        """The offsets at which there was a record."""
        return self.learnt + sum(self.set_aside.values()) + sum(self.skipped.values()) + self.filtered

    def __add__(self, other: "OffsetCounts") -> "OffsetCounts":
        """Return the counts of both ranges, without whatever else a type that extends this one holds."""
        return OffsetCounts(
            learnt=self.learnt + other.learnt,
            set_aside=_sum(self.set_aside, other.set_aside),
            skipped=_sum(self.skipped, other.skipped),
            filtered=self.filtered + other.filtered,
            gaps=self.gaps + other.gaps,
            lost=self.lost + other.lost,
            truncated=_sum(self.truncated, other.truncated),
        )

    def refusing(self, refused: Mapping[Reason, int]) -> "OffsetCounts":
        """Return the counts after these rows turned out unfit: they are set aside, not learnt."""
        return self + OffsetCounts(learnt=-sum(refused.values()), set_aside=dict(refused))

    def fields(self) -> dict[str, Any]:
        """Return the counters by name, to construct a type that extends this one."""
        return {name: getattr(self, name) for name in OffsetCounts.__dataclass_fields__}

    def to_json(self) -> dict[str, Any]:
        """Return the counters as ledger files and API answers hold them; `filtered` and `truncated` where some are."""
        json = self.fields() | {
            "set_aside": {reason.value: count for reason, count in self.set_aside.items()},
            "skipped": dict(self.skipped),
            "truncated": dict(self.truncated),
        }
        return {name: count for name, count in json.items() if count or name not in {"filtered", "truncated"}}

    @classmethod
    def of_json(cls, json: Mapping[str, Any]) -> "OffsetCounts":
        """Read counters from JSON. Raises KeyError, TypeError or ValueError for what is none."""
        return OffsetCounts(
            learnt=int(json["learnt"]),
            set_aside={Reason(reason): int(count) for reason, count in json["set_aside"].items()},
            skipped={str(order): int(count) for order, count in json["skipped"].items()},
            filtered=int(json.get("filtered", 0)),
            gaps=int(json["gaps"]),
            lost=int(json["lost"]),
            truncated={str(name): int(count) for name, count in json.get("truncated", {}).items()},
        )


def _sum(counts: Mapping[K, int], more: Mapping[K, int]) -> Mapping[K, int]:
    """Return the sum by key. Most blocks set nothing aside: then nothing is copied."""
    if not counts or not more:
        return more or counts
    total = dict(counts)
    for key, count in more.items():
        total[key] = total.get(key, 0) + count
    return total
