"""Changes: of a field that is not as it was, what has changed, since which record, and in which slice. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.consumers.metric import moment
from millrace.consumers.records import Partition
from millrace.pipelines.gates.input_gate import InputGate
from millrace.training.trainer.inputs.distances import (
    Bits,
    Cause,
    Columns,
    Floats,
    Gained,
    Places,
    Reference,
    gained,
    most_changed,
)
from millrace.training.trainer.inputs.open_window import WindowRows
from millrace.training.trainer.inputs.portraits import Portrait, change_of, percent

_FEWEST_OF_SLICE = 16
_APART = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A field that is not as it was."""

    field: str
    cause: Cause
    text: str
    """What is different, since when: a clause."""
    effect: float
    """The distance."""
    since_ms: int
    """The event time of the first record of it, as far as a sample tells, and where that is."""
    partition: str
    offset: int
    window: int
    """The number of the window in which it was found."""
    first: str
    """The field of the mark to which it belongs."""
    before: Portrait

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        whole = {name: getattr(self, name) for name in self.__slots__}
        return {**whole, "cause": self.cause.name, "before": self.before.to_json()}

    @classmethod
    def of_json(cls, json: Mapping[str, Any]) -> "Changed":
        """Return what `to_json` has written."""
        return cls(**{**json, "cause": Cause[json["cause"]], "before": Portrait.of_json(json["before"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedWindow:
    """A window with a field that has changed."""

    gate: InputGate
    slices: Sequence[int]
    """The columns of texts by whose values a change may be told apart."""
    partitions: Sequence[Partition]
    number: int
    rows: WindowRows
    """Of the window, and of the one before, in which the change may have begun; at least one."""
    now: Columns
    """Of the window."""
    then: Reference
    usual: Floats
    """[field, cause]: what a share was usually."""
    refused: Floats
    """By field: the share of the window's records that were set aside for it."""

    def change(self, at: int, cause: Cause, effect: float, known: Portrait | None) -> Changed | None:
        """Return what has changed of a field; None if it is again as it was before its last change: as `known`."""
        gate, then, rows = self.gate, self.then, self.rows
        name, numbers = (*gate.numbers, *gate.texts)[at].name, len(gate.numbers)
        more, what = self._gained(at, cause)
        # What is said of the values is said of those since then.
        order = _since(more, rows)
        since, has = rows.rows(order), more.rows[order]
        after = Portrait.of(Columns.of(since.numbers, since.texts), numbers, at)
        if known is not None and after.resembles(known, len(since)):
            return None
        first, before = int(order[0]), Portrait.of_reference(then, numbers, at)
        where = self._concentrated(at, has, since)
        if where is not None:
            since, has = since.rows(np.flatnonzero(where[1])), has[where[1]]
            after = Portrait.of(Columns.of(since.numbers, since.texts), numbers, at)
        share = float(has.mean())
        shares = (1 - more.before, 1 - share) if more.less else (more.before, share)
        if cause is Cause.REFUSED:
            shares = float(self.usual[at, cause]), float(self.refused[at])
        text = change_of(cause, before, after, None if what is None else (what, *shares))
        if where is not None:
            text += f", {where[0]}"
        since_ms, offset = int(rows.times[first]), int(rows.offsets[first])
        partition = str(self.partitions[int(rows.partitions[first])])
        return Changed(
            field=name,
            cause=cause,
            text=f"{text}, since {clock(since_ms)}, {partition} offset {offset}",
            effect=effect,
            since_ms=since_ms,
            partition=partition,
            offset=offset,
            window=self.number,
            first=name,
            before=before,
        )

    def _gained(self, at: int, cause: Cause) -> tuple[Gained, str | None]:
        """Return which rows have what there is more of now, or less, and what they have in common, in words."""
        then, now, rows, first = self.then, self.now, self.rows, len(self.gate.numbers)
        track = at if cause is not Cause.CHARACTERS else at + len(self.gate.texts)
        values = rows.numbers[:, track]
        if cause is Cause.MISSING:
            share = 1 - then.present[track] / max(1, then.rows)
            return Gained.of(np.isnan(values), float(share)), "missing in"
        if cause is Cause.REFUSED:
            return Gained(np.ones(len(rows), np.bool_), 1.0), "set aside for it"
        if at < first or cause in {Cause.LENGTH, Cause.CHARACTERS}:
            return gained(values, track, then), None
        texts, known = rows.texts[:, at - first].tolist(), then.texts[at - first]
        if cause is Cause.UNSEEN:
            new = np.fromiter((value not in known for value in texts), np.bool_, len(texts))
            return Gained.of(new, float(self.usual[at, cause])), "values that were not there before in"
        value, _ = most_changed(now.texts[at - first], now.rows, known, then.rows)
        has = np.fromiter((one == value for one in texts), np.bool_, len(texts))
        return Gained.of(has, known.get(value or b"", 0) / max(1, then.rows)), "one of its values"

    def _concentrated(self, at: int, more: Bits, rows: WindowRows) -> tuple[str, Bits] | None:
        """Return in which slice a change is, in words, and its rows; None if it is in no one more than in others."""
        best, found = _APART, None
        first = len(self.gate.numbers)
        for column in self.slices:
            if first + column == at:
                continue
            values = rows.texts[:, column]
            for value in sorted(set(values.tolist())):
                has = values == value
                if not _FEWEST_OF_SLICE <= has.sum() <= len(has) - _FEWEST_OF_SLICE:
                    continue
                inside, outside = float(more[has].mean()), float(more[~has].mean())
                if inside - outside > best and inside > 2 * outside:
                    best = inside - outside
                    shown = value.decode("utf-8", "replace")
                    text = f"in {percent(inside)} of the records with {self.gate.texts[column].name}={shown}"
                    found = text, np.asarray(has, np.bool_)
        return found


def _since(more: Gained, rows: WindowRows) -> Places:
    """Return the rows, by time, from the likeliest place on from which there is more than before.

    It is the one at which two shares, the one before and the one of the rest, tell best what was seen.
    """
    order = np.lexsort((rows.offsets, rows.times))
    rest = np.arange(len(order), 0, -1)
    has = more.rows[order]
    share = np.cumsum(has[::-1])[::-1] / rest
    least = 0.5 / len(order)
    before = min(max(more.before, least), 1 - least)
    share = np.clip(share, before, 1 - least)
    likelier = rest * (share * np.log(share / before) + (1 - share) * np.log((1 - share) / (1 - before)))
    return order[int(likelier.argmax()) :]


def clock(time_ms: int) -> str:
    """Return an event time to the second, or as a number if no calendar has it."""
    try:
        return f"{moment(time_ms / 1000)[:19]}Z"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"
