"""Labels that come later, in a proof: both topics are made up, and a plain join of them says what is to be learnt.

The broker writes down when it has appended each record and each label, and these are their times. So neither are out of
order and no label is late, and who has which is decided by the times and keys alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.schema import PRESENT, Column, Field, Schema
from millrace.pipelines.shaping.followed_states import FollowedShaper, NothingRemembered, Taken
from millrace.pipelines.shaping.labels.options import LabelOptions
from millrace.pipelines.shaping.labels.rules import NAME, JoinRules, Match, Take
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped, only

BY_BROKER: Mapping[str, str] = {"log.message.timestamp.type": "LogAppendTime"}
SHARE = 0.04
"""Labels for each record."""
_WITHIN_S, _EARLY_S = 2.0, 0.5
_KEYS = 64
RECORDS_FROM, LABELS_FROM = 0, _KEYS // 2
"""The first keys of records and of labels: half of the labels are for nobody, and half of the records have none."""


def in_time(values: dict[str, Any], options: LabelOptions) -> None:
    """Have a config join by the broker's times, and within seconds, as nobody waits for half an hour.

    Made-up labels lie in any partition.
    """
    if options.match is not Match.ALL:
        raise ConfigError(
            f"labels.match: {options.match}: a proof joins each record by itself; prove it with match: all, which "
            "reads and keeps the same labels"
        )
    labels, records = values["labels"], values["records"]
    labels["within"] = f"{min(options.within, _WITHIN_S):g}s"
    labels["early"] = f"{min(options.early, _EARLY_S):g}s"
    labels["co_partitioned"] = False
    for one in (labels, records, *records["by_topic"].values()):
        one["event_time"] = None


def with_keys(schema: Schema, source: str, first: int) -> Schema:
    """Return a schema of records to make up that have one of some keys, from this one on."""

    def keyed(field: Field) -> Field:
        if field.source != source or field.one_of is not None:
            return field
        numbers = range(first, first + _KEYS)
        return replace(field, one_of=tuple(f"key-{one}" if field.dtype == "string" else one for one in numbers))

    key = None if schema.key is None else keyed(schema.key)
    return replace(schema, features=tuple(map(keyed, schema.features)), key=key)


class PlainJoin(FollowedShaper[NothingRemembered]):
    """Gives records the labels that were made up, one record after the other, and counts what became of them."""

    name = NAME
    setting = "labels"

    def __init__(self, rules: JoinRules, labels: Iterable[Decoded], key: str) -> None:
        """Take all labels in, whose records have their key as the feature `key`."""
        super().__init__(NothingRemembered)
        self._rules = rules
        self._labels = defaultdict[Any, list[tuple[int, Partition, int, Mapping[str, Any]]]](list)
        self.outcomes = defaultdict[Partition, dict[int, str]](dict)
        for chunk in labels:
            columns = zip(chunk.event_times.tolist(), chunk.offsets.tolist(), chunk.features[key].tolist(), strict=True)
            for row, (time, offset, at) in enumerate(columns):
                values = {name: column[row] for name, column in chunk.labels.items()}
                self._labels[at].append((time, chunk.partition, offset, values))
        for found in self._labels.values():
            found.sort(key=lambda one: one[:3])

    def made(self, decoded: Decoded, state: NothingRemembered) -> tuple[Decoded, list[Skipped], Taken]:
        """Return the rows with their labels, and the records that are not learnt for want of one."""
        del state
        assert decoded.keys is not None
        rules, columns = self._rules, dict[str, Column](decoded.labels)
        fits = [
            [one[-1] for one in self._labels[key] if time - rules.early_ms <= one[0] <= time + rules.within_ms]
            for key, time in zip(decoded.keys.tolist(), decoded.event_times.tolist(), strict=True)
        ]
        labelled = np.array([bool(found) for found in fits], np.bool_)
        for field in rules.fields:
            absent = rules.absent[field.name]
            column = np.full((len(decoded), *field.shape), 0 if absent is None else absent, field.numpy_dtype)
            for row in np.flatnonzero(labelled):
                column[row] = _taken(rules.take, [values[field.name] for values in fits[row]])
            columns[field.name] = column
            if field.masked:
                columns[field.name + PRESENT] = labelled
        drops = None in rules.absent.values()
        for offset, found in zip(decoded.offsets.tolist(), labelled.tolist(), strict=True):
            self.outcomes[decoded.partition][offset] = "labelled" if found else "dropped" if drops else "absent"
        rows, taken = replace(decoded, labels=columns), Taken(decoded.end, decoded.offsets, {})
        if not drops or labelled.all():
            return rows, [], taken
        left_out = [(offset, NAME) for offset in decoded.offsets[~labelled].tolist()]
        return only(rows, np.flatnonzero(labelled)), left_out, taken

    def counted(self, partition: Partition, position: int) -> Counter[str]:
        """Count the records of a partition before an offset by what became of them."""
        return Counter(outcome for offset, outcome in self.outcomes[partition].items() if offset < position)


def _taken(take: Take, values: list[Any]) -> Any:
    """Return which of several labels a record gets, which are sorted by their time."""
    match take:
        case Take.FIRST:
            return values[0]
        case Take.LAST:
            return values[-1]
        case Take.COUNT:
            return len(values)
    return max(values) if take is Take.MAX else sum(values)
