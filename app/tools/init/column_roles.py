"""The roles of the columns: the label, the features, a weight, an event time. Pure.

Beside them, what the records are as a whole: sequences, if a key comes again and again, so that a draft learns from its
last records; change events of a database, as Debezium writes them, an envelope around the row before and after.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from millrace.app.tools.init.columns import ColumnKind, ColumnLook
from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.draft import Row

_NAMED_AS_LABEL = re.compile(r"y|label|target|class|outcome|clicked|converted|churned", re.IGNORECASE)
_LIKE_A_LABEL = re.compile(rf"{_NAMED_AS_LABEL.pattern}|is_.*|has_.*", re.IGNORECASE)
_MOST_CLASSES, _SURELY_CLASSES = 64, 20
"""The most classes. Of more than the lower limit nearly all whole numbers from 0 on must have come."""
_NEARLY_ALL = 0.9
_WEIGHS = (ColumnKind.NUMBER, ColumnKind.CATEGORY)


class Task(StrEnum):
    """What is predicted."""

    BINARY = "binary"
    CLASSES = "classes"
    """Integers from 0 on."""
    NAMED_CLASSES = "named_classes"
    """Texts."""
    NUMBER = "number"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRoles:
    """The roles that the user has chosen; None where the user has not."""

    label: str | None
    weight: str | None = None
    event_time: str | None = None
    features: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The role of every column."""

    label: ColumnLook
    task: Task
    features: tuple[ColumnLook, ...]
    weight: ColumnLook | None
    event_time: ColumnLook | None
    left_out: tuple[ColumnLook, ...]


def likely_labels(columns: Sequence[ColumnLook]) -> list[str]:
    """Return the columns that can be a label, the likeliest first."""
    able = [column for column in columns if _task(column) is not None]
    return [column.source for column in sorted(able, key=lambda column: not named_like_a_label(column))]


def named_like_a_label(column: ColumnLook) -> bool:
    """Return whether a column is named as labels often are."""
    return _LIKE_A_LABEL.fullmatch(column.last) is not None


def label_by_name(columns: Sequence[ColumnLook]) -> str | None:
    """Return the only column that can be a label and is named as labels are; None where there is none, or several."""
    able = {*likely_labels(columns)}
    named = [column.source for column in columns if column.source in able and _NAMED_AS_LABEL.fullmatch(column.last)]
    return named[0] if len(named) == 1 else None


def likely_times(columns: Sequence[ColumnLook]) -> list[str]:
    """Return the columns that can be an event time."""
    return [column.source for column in columns if column.timely]


def likely_weights(columns: Sequence[ColumnLook]) -> list[str]:
    """Return the columns that can be a record's weight."""
    return [column.source for column in columns if column.kind in _WEIGHS]


def cast(columns: Sequence[ColumnLook], wanted: ChosenRoles) -> Roles:
    """Give every column its role. ConfigError where a chosen role does not fit the column."""
    by_source = {column.source: column for column in columns}
    label = _named(by_source, "--label", wanted.label or "")
    task = _task(label)
    if task is None:
        raise ConfigError(f"--label: {label.source!r} cannot be predicted ({label.why or label.kind}); name another")
    weight = None if wanted.weight is None else _named(by_source, "--weight", wanted.weight)
    if weight is not None and weight.kind not in _WEIGHS:
        raise ConfigError(f"--weight: {weight.source!r} is no number; name another, or none")
    time = None if wanted.event_time is None else _named(by_source, "--event-time", wanted.event_time)
    if time is not None and not time.timely:
        raise ConfigError(
            f"--event-time: {time.source!r} holds no time that can be read ({time.why or time.kind}); name another, or "
            "none"
        )
    taken = {column.source for column in (label, weight, time) if column is not None}
    free = [column for column in columns if column.source not in taken]
    if wanted.features is None:
        # Free text is much to learn from, so it is left to the user where there is anything else.
        features = [column for column in free if column.learnable and column.source != label.twin]
        features = features or [column for column in free if column.kind is ColumnKind.FREE_TEXT]
    else:
        features = [_feature(by_source, source, taken) for source in wanted.features]
    if not features:
        whys = "; ".join(f"{column.source}: {column.why}" for column in free if column.why)
        raise ConfigError(f"no field is left to learn from{f': {whys}' if whys else '; name some with --features'}")
    return Roles(
        label=label,
        task=task,
        features=tuple(features),
        weight=weight,
        event_time=time,
        left_out=tuple(
            replace(column, why=f"the same as the label {label.source}") if column.source == label.twin else column
            for column in free
            if column.source not in {feature.source for feature in features}
        ),
    )


def _task(column: ColumnLook) -> Task | None:
    distinct = column.distinct
    if column.is_identity:
        return None
    if column.kind is ColumnKind.FLAG or (distinct and {*distinct} <= {0, 1}):
        return Task.BINARY
    if column.kind is ColumnKind.TEXT:
        return Task.NAMED_CLASSES if 2 <= len(distinct) <= _MOST_CLASSES else None
    if column.kind is ColumnKind.CATEGORY and distinct and distinct[0] >= 0 and distinct[-1] < _MOST_CLASSES:
        full = distinct[0] == 0 and len(distinct) >= _NEARLY_ALL * (distinct[-1] + 1)
        if full or distinct[-1] < _SURELY_CLASSES:
            return Task.CLASSES
    return Task.NUMBER if column.kind in {ColumnKind.NUMBER, ColumnKind.CATEGORY} else None


def _feature(by_source: dict[str, ColumnLook], source: str, taken: set[str]) -> ColumnLook:
    column = _named(by_source, "--features", source)
    if source in taken:
        raise ConfigError(f"--features: {source!r} is the label, weight or event time already; leave it out")
    if not column.learnable_by_name:
        raise ConfigError(f"--features: {source!r} cannot be learnt from ({column.why}); leave it out")
    return replace(column, kind=ColumnKind.NUMBER if column.seconds else column.kind, why="")


def _named(by_source: dict[str, ColumnLook], option: str, source: str) -> ColumnLook:
    if source not in by_source:
        raise ConfigError(f"{option}: the records have no field {source!r}; they have {', '.join(by_source)}")
    return by_source[source]


LENGTH = 20
"""The records of a drafted sequence."""
_FEWEST_KEYS, _EACH_COMES = 5, 3
"""A key has at least this many values, and each comes this often on average."""
_STEPS = frozenset({ColumnKind.NUMBER, ColumnKind.CATEGORY, ColumnKind.FLAG, ColumnKind.TEXT, ColumnKind.NUMBERS})
"""What a recurrent layer is given step by step; of the others it is the newest record's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """How records become sequences."""

    key: ColumnLook
    distinct: int
    """The values of the key that were seen."""
    whole: bool
    """Whether all records of a key are in one partition, so that the sequences miss none."""

    def steps(self, features: Sequence[ColumnLook]) -> list[ColumnLook]:
        """Return the features that become sequences."""
        return [one for one in features if one.kind in _STEPS and one.source != self.key.source]


def sequences_of(rows: Sequence[Row], roles: Roles, partitions: int) -> Sequences | None:
    """Return the sequences that a draft can learn from; None if no key repeats, or nothing would be in them."""
    twins = {column.twin for column in roles.left_out if column.source == "$key"}
    for column in roles.features:
        keys = [row[column.source] for row in rows if isinstance(row.get(column.source), str | int)]
        distinct = len({*keys})
        full = len(keys) > len(rows) / 2 and not any(isinstance(key, bool) for key in keys)
        exact = column.kind in {ColumnKind.TEXT, ColumnKind.CATEGORY}
        if full and exact and column.names_things and _FEWEST_KEYS <= distinct <= len(keys) / _EACH_COMES:
            whole = partitions == 1 or column.source == "$key" or column.source in twins
            found = Sequences(key=column, distinct=distinct, whole=whole)
            return found if found.steps(roles.features) else None
    return None


_OPERATIONS = frozenset("crudtm")
_PREFIXES = ("", "payload.")
"""Before the names of the envelope's fields: with schemas in the records they are those of `payload`."""
_BEFORE = "the row before the change, which may give the label away; name it with --features to learn from it"
_ABOUT = "of the envelope, about the change and not about the row; name it with --features to learn from it"


def envelope_of(columns: Sequence[ColumnLook]) -> str | None:
    """Return what is before the names of the envelope's fields; None if the records are no change events."""
    by_source = {column.source: column for column in columns}
    for prefix in _PREFIXES:
        operation = by_source.get(f"{prefix}op")
        parts = [any(source.startswith(f"{prefix}{part}.") for source in by_source) for part in ("after", "source")]
        if operation is not None and operation.distinct and {*operation.distinct} <= _OPERATIONS and all(parts):
            return prefix
    return None


def without_envelope(columns: Sequence[ColumnLook], prefix: str) -> list[ColumnLook]:
    """Return the columns, with the reason beside those that are left out: all but the new row and the operation."""
    about = tuple(f"{prefix}{part}" for part in ("source.", "transaction", "ts_"))

    def told(column: ColumnLook) -> ColumnLook:
        if column.source == f"{prefix}before" or column.source.startswith(f"{prefix}before."):
            return replace(column, why=_BEFORE, twin="")
        of_the_envelope = column.source.startswith(about) or column.source == "$key"
        return replace(column, why=_ABOUT) if of_the_envelope and not column.why else column

    return [told(column) for column in columns]


def deletes_and_tombstones(rows: Sequence[Row], prefix: str, looked_at: int, tombstones: int) -> str:
    """Return the sentence about the change events that hold no row."""
    deletes = sum(row.get(f"{prefix}op") == "d" for row in rows)
    return (
        f"these are change events of Debezium, learnt from the new row: of {looked_at + tombstones:,} records "
        f"{deletes:,} are deletes, which have none, and {tombstones:,} tombstones; such records are set aside, as "
        "missing and empty"
    )
