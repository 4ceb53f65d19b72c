"""Labels of a topic of their own: the key that they share with the records, what they say, how late they come. Pure.

The first records of both topics are joined in memory, so that the draft knows how often a record gets a label.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.app.tools.init.column_roles import label_by_name, likely_labels
from millrace.app.tools.init.columns import columns_of
from millrace.app.tools.init.topic_sample import SampledRecords
from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.draft import Look, Row

_FEWEST, _LEAST_SHARE = 3, 0.05
"""So many labels, and such a share of them, are of the records that were looked at; fewer may meet by chance."""
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SPARE = 1.25
"""How much longer than for nearly all of the labels that were seen a record waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterLabels:
    """What is known of the labels."""

    topic: str
    look: Look
    key: tuple[str, str]
    """The place of the key in a record, and in that of a label."""
    dtype: str
    """The key's."""
    label: str
    """The field that is predicted."""
    absent: Any
    """Its value where no label came; None where such records are not learnt."""
    within: str
    early: str
    delay_s: float | None
    """After which time 99 of 100 labels came; None where that is not known."""
    share: float
    """How many of the records that were looked at have a label."""


def later_labels(
    topic: str, records: tuple[SampledRecords, Look], labels: tuple[SampledRecords, Look], wanted: str | None
) -> tuple[LaterLabels, Look]:
    """Return what is known of the labels, and the look at the records with their labels in them."""
    (found, look), (later, label_look) = records, labels
    source, place = _shared_key(look.rows, label_look.rows, topic)
    label = _label_of(label_look, place, wanted, topic)
    if any(label in row for row in look.rows):
        raise ConfigError(f"--labels-topic: the records have a field {label!r} too; name another with --label")
    values = {row[place]: row[label] for row in reversed(label_look.rows) if _names(row.get(place)) and label in row}
    seen = {*values.values()}
    absent = False if seen <= {True, False} and any(one is True for one in seen) else 0 if seen <= {0, 1} else None
    keys = [row.get(source) if _names(row.get(source)) else None for row in look.rows]
    rows = [
        {**row, label: values.get(key, absent)}
        for row, key in zip(look.rows, keys, strict=True)
        if absent is not None or key in values
    ]
    delays = _delays(found, look, later, label_look, (source, place))
    late = None if not delays else delays[min(len(delays) - 1, int(0.99 * len(delays)))]
    early = 0 if not delays else -min(0, delays[int(0.01 * len(delays))])
    return (
        LaterLabels(
            topic=topic,
            look=label_look,
            key=(source, place),
            dtype="int64" if all(isinstance(key, int) for key in values) else "string",
            label=label,
            absent=absent,
            within=_rounded_up(1800 if late is None else _SPARE * max(0, late) / 1000),
            early=_rounded_up(max(1, _SPARE * early / 1000)),
            delay_s=None if late is None else max(0, late) / 1000,
            share=sum(key in values for key in keys) / len(look.rows),
        ),
        replace(look, rows=rows),
    )


def labels_section(labels: LaterLabels, label: Mapping[str, Any], flow: Any) -> str:
    """Return the section of the config; `label` are the settings of what is predicted."""
    own = "".join(f"  {key}: {flow(value)}\n" for key, value in labels.look.section.items() if key != "where")
    settings = {key: value for key, value in label.items() if key != "field"}
    absent = "drop" if labels.absent is None else labels.absent if settings["dtype"] == "bool" else float(labels.absent)
    named = {labels.label: {**settings, "absent": absent}}
    record, place = labels.key
    known = (
        ""
        if labels.delay_s is None
        else f"    # 99 % of the labels that were looked at came within {labels.delay_s:.3g} s"
    )
    return f"""\
labels:                             # {labels.share:.1%} of the records that were looked at have one
  topics: {flow([labels.topic])}
  format: {labels.look.format}
{own}  join: {flow({"record": record, "label": place, "dtype": labels.dtype})}
  label: {flow(named)}
  within: {labels.within}{known}
  early: {labels.early}
  score_on_arrival: 0.01  # predicts one record in a hundred when it comes; reads the records' topics twice for it

"""


def _shared_key(records: Sequence[Row], labels: Sequence[Row], topic: str) -> tuple[str, str]:
    """Return the fields of both that have the same values most often."""
    best, found = (0.0, False), None
    of_records, of_labels = _keys(records), _keys(labels)
    for source, known in of_records.items():
        for place, asked in of_labels.items():
            met = len(asked & known)
            share = (met / len(asked), source == place)
            # What is the same in many records names no record.
            names_one = len(known) >= 0.5 * len(records)
            if met >= min(_FEWEST, len(asked)) and share[0] >= _LEAST_SHARE and names_one and share > best:
                best, found = share, (source, place)
    if found is None:
        raise ConfigError(
            f"--labels-topic: no field of {topic} has the values of one that tells the records apart "
            f"({', '.join(of_labels)} there; {', '.join(of_records)} here); write the config by docs/labels.md"
        )
    return found


def _keys(rows: Sequence[Row]) -> dict[str, set[Any]]:
    sources = {source for row in rows for source in row}
    found = {source: {row[source] for row in rows if _names(row.get(source))} for source in sorted(sources)}
    return {source: values for source, values in found.items() if values}


def _names(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _label_of(look: Look, key: str, wanted: str | None, topic: str) -> str:
    columns = [column for column in columns_of(look.rows, look.nullable) if column.source != key]
    able = likely_labels(columns)
    if wanted is not None:
        if wanted not in able:
            raise ConfigError(
                f"--label: {topic} has no field {wanted!r} that can be predicted; it has {', '.join(able)}"
            )
        return wanted
    chosen = label_by_name(columns) or (able[0] if len(able) == 1 else None)
    if chosen is None:
        there = f"name one of {', '.join(able)}" if able else "there is none beside the key; write one, as clicked: 1"
        raise ConfigError(f"--label is missing: which field of {topic} is to be predicted? {there}")
    return chosen


def _delays(
    found: SampledRecords, look: Look, later: SampledRecords, label_look: Look, key: tuple[str, str]
) -> list[int]:
    """Return after how many milliseconds labels came, ascending; nothing where rows and records do not correspond."""
    if len(look.rows) != len(found.times) or len(label_look.rows) != len(later.times):
        return []
    record, place = key
    began = {row[record]: at for row, at in zip(look.rows, found.times, strict=True) if _names(row.get(record))}
    came = zip(label_look.rows, later.times, strict=True)
    return sorted(at - began[row[place]] for row, at in came if _names(row.get(place)) and row[place] in began)


def _rounded_up(seconds: float) -> str:
    step = next((one for one in _STEPS_S if one >= seconds), math.ceil(seconds / 86400) * 86400)
    size, unit = next((size, unit) for size, unit in _UNITS if step % size == 0)
    return f"{step // size}{unit}"
