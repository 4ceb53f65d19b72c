"""The inputs: whether the fields of the records are as they were, and since when not.

At the end of each window its sample is compared with that of the windows before, field by field. A field has changed if
its distance exceeds what chance explains by more than a least effect and by more than it has done in the field's own
past. So a field that always moves, as an id or a time, is never named, and one that does not is not, however many
records there are. Fields that change within a minute are one mark, with the one that has changed most in front.

Owns the part `inputs`: the open window, the rows of those before, how far each field has moved in its past, and what
has changed. It is a function of the records and of where calls end. Runs on the trainer's thread; `view` is for any.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from millrace.consumers.metric import moment
from millrace.pipelines.gates.input_gate import InputGate, WatchedColumn
from millrace.pipelines.schema import Column
from millrace.pipelines.shaping.followed_states import packed, unpacked
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity, ignore_event
from millrace.training.telemetry.watcher import Call, Watcher
from millrace.training.trainer.inputs.distances import (
    COMPARED,
    Bits,
    Cause,
    Columns,
    Digest,
    Distances,
    Floats,
    Gained,
    Places,
    Reference,
    distances,
    gained,
    most_changed,
    with_derived,
)
from millrace.training.trainer.inputs.figures import CHANGED, NAME, InputFigures
from millrace.training.trainer.inputs.open_window import WINDOW_MS, OpenWindow, WindowRows
from millrace.training.trainer.inputs.portraits import Portrait, change_of, percent

_REFERENCE, _RENEWED = 8, 4
"""Windows that a window is compared with, and after how many they are replaced by newer ones."""
_LEARNING = 12
"""Windows by which the fields' own past begins to be known."""
_LEAST = 0.08
"""The least effect, beyond chance."""
_OWN = 1.5
"""So many times as far as ever before a field has to move."""
_FORGETS = 0.5 ** (1 / 10_000)
"""How much of a field's own past is remembered a window later: half after 11 hours."""
_SETTLES = 13
"""Windows after a change in which a field is compared with records from before and after it."""
_TOGETHER = 60_000 // WINDOW_MS
"""Windows within which fields change together."""
_LASTS = 3_600_000 // WINDOW_MS
"""Windows after which what has changed is how the field is."""
_PLAIN = np.array([1.0, 1.0, 1.0, 0.8, 0.1, 1.0])
"""By cause: how well it says what has changed. What texts are made of is said if nothing else is."""
_USUAL = 1 / 8
_MOST_METRICS = 256
_FEWEST_OF_SLICE = 16
_APART = 0.3
_NAMED_WITH = 5
"""Further fields that the text of a mark names."""


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


@dataclass(frozen=True, kw_only=True)
class InputsView:
    """What is known at the end of a window; it does not change."""

    fields: Sequence[WatchedColumn]
    numbers: int
    """How many of the fields are numbers; they come first."""
    compared: Columns
    """Some rows of the window."""
    rows: Callable[[], WindowRows]
    """Returns all of them."""
    then: Reference | None
    """None until there are enough windows."""
    effects: Floats
    """[field, cause]: how far each is apart."""
    unusual: Floats
    """By field: how much further it is than chance, a least effect and its own past explain."""
    changed: Mapping[str, Changed]
    refused: Mapping[str, Mapping[str, int]]
    """Records since checkpoint 0 that were set aside for a field, by reason."""
    cut: Mapping[str, int]
    """Records since then whose list was cut to its bound."""
    records: int
    """Of the window."""
    ended_ms: int

    def distance(self, at: int) -> float:
        """Return how far a field lies from the windows before."""
        return float(self.effects[at].max(initial=0.0))

    @cached_property
    def now(self) -> Columns:
        """All rows of the window; sorted when they are first asked for."""
        rows = self.rows()
        return Columns.of(rows.numbers, rows.texts)

    def now_of(self, at: int) -> Portrait:
        """Return what a field is like."""
        return Portrait.of(self.now, self.numbers, at)

    def before(self, at: int) -> Portrait | None:
        """Return what a field was like: before its change, or in the windows before."""
        if (changed := self.changed.get(self.fields[at].name)) is not None:
            return changed.before
        return None if self.then is None else Portrait.of_reference(self.then, self.numbers, at)


class Inputs(Watcher):
    """The inputs of one model."""

    name = NAME
    score_names = (CHANGED,)

    def __init__(self, gate: InputGate, slices: Collection[str] = (), report: ReportEvent = ignore_event) -> None:
        """`slices` are the fields by whose values a change may be told apart."""
        self.gates = (gate,)
        self._gate, self._report = gate, report
        self.fields = (*gate.numbers, *gate.texts)
        self._slices = [at for at, one in enumerate(gate.texts) if one.name in slices]
        self._by_source: dict[str, list[int]] = {}
        for at, one in enumerate(self.fields):
            self._by_source.setdefault(one.source, []).append(at)
        self._absent = np.array([np.nan if one.missing is None else one.missing for one in gate.numbers], gate.dtype)
        self._some_absent = bool(np.isfinite(self._absent).any())
        self._absent_texts = [one.missing if isinstance(one.missing, bytes) else None for one in gate.texts]
        self._open = OpenWindow(gate)
        self.view: InputsView | None = None
        """What was known at the end of the last window; None before the first."""
        self._marks = 0
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing known."""
        shape = len(self.fields), len(Cause)
        self._open.begin()
        self._windows = 0
        self._past: list[Digest] = []
        """Of the windows that the reference is made of."""
        self._next: list[Digest] = []
        self._reference: Reference | None = None
        self._last = WindowRows.none(self._gate)
        """The rows of the last window that were compared."""
        self._own, self._latest = np.zeros(shape), np.zeros(shape)
        """By field and cause: how far it has moved, before the last window and in it. A change may begin in a window
        and be found in the next, so that one is not its past yet."""
        self._usual, self._usual_before = np.zeros(shape), np.zeros(shape)
        """By field and cause: what a share is usually, with this window and without it."""
        self._settled = np.zeros(shape[0], np.int64)
        """The window from which on a field is compared again."""
        self._changed: dict[str, Changed] = {}
        self._mark: tuple[str, int] | None = None
        """The field of the last mark, and its window."""
        self._refused: dict[str, dict[str, int]] = {}
        self._refused_now = np.zeros(shape[0], np.int64)
        self._cut: dict[str, int] = {}

    def called(self, call: Call) -> None:
        """Take in the records of a call, and compare them if a window is over."""
        records = 0
        for span in call.facts.spans:
            records += span.records - span.filtered
            for name, count in span.truncated.items():
                self._cut[name] = self._cut.get(name, 0) + count
            for sample, refused in self._gate.take(span.partition, span.end):
                self._open.add(span.partition, sample)
                for one in refused:
                    if one.field is not None:
                        counts = self._refused.setdefault(one.field, {})
                        counts[one.reason.value] = counts.get(one.reason.value, 0) + 1
                        self._refused_now[self._by_source.get(one.field, [])] += 1
        if self._open.ended(records):
            self._close()

    def figures(self) -> InputFigures | None:
        """Return how the fields are, by name; None before the first window is over."""
        if (view := self.view) is None:
            return None
        missing = 1 - view.compared.present[: len(self.fields)] / max(1, view.compared.rows)
        places = range(min(len(self.fields), _MOST_METRICS))
        return InputFigures(
            marks=self._marks,
            changed=len(view.changed),
            distance={self.fields[at].name: round(view.distance(at), 4) for at in places},
            missing={self.fields[at].name: round(float(missing[at]), 4) for at in places},
        )

    def scores(self) -> Mapping[str, float]:
        """Return how many fields have changed and are not as before again."""
        view = self.view
        return {} if view is None else {CHANGED: float(len(view.changed))}

    # A window.

    def _close(self) -> None:
        """Compare the window with those before it, mark what has changed, and begin the next one."""
        every = self._open.rows()
        compared = every.rows(slice(COMPARED))
        rows = self._with_derived(compared)
        now = Columns.of(rows.numbers, rows.texts)
        effects, unusual = np.zeros_like(self._own), np.zeros_like(self._own)
        if self._reference is not None:
            effects, excess = self._effects(distances(now, self._reference))
            unusual = excess - _LEAST - _OWN * self._own
            self._judge(rows, now, effects, excess, unusual)
        self._windows += 1
        self._next.append(Digest.of(now))
        if len(self._next) == _RENEWED:
            self._past = [*self._past, *self._next][-_REFERENCE:]
            self._next = []
            self._refer()
        self.view = InputsView(
            fields=self.fields,
            numbers=len(self._gate.numbers),
            compared=now,
            rows=partial(self._with_derived, every),
            then=self._reference,
            effects=effects,
            unusual=unusual.max(axis=1, initial=-1.0),
            changed=dict(self._changed),
            refused={name: dict(counts) for name, counts in self._refused.items()},
            cut=dict(self._cut),
            records=self._open.records,
            ended_ms=self._open.reached_ms,
        )
        self._last = compared
        self._refused_now[:] = 0
        self._open.begin()

    def _with_derived(self, rows: WindowRows) -> WindowRows:
        """Return the rows with NaN for what is missing, and what texts are measured by behind the numbers."""
        good = np.isfinite(rows.numbers)
        if self._some_absent:
            good &= rows.numbers != self._absent
        numbers = rows.numbers if good.all() else np.where(good, rows.numbers, np.nan)
        return replace(rows, numbers=with_derived(numbers, rows.texts, self._absent_texts))

    def _refer(self) -> None:
        """Make the reference of the windows that are past."""
        self._reference = Reference(self._past)

    def _effects(self, found: Distances) -> tuple[Floats, Floats]:
        """Return by field and cause the distance, and how far that is beyond chance."""
        first, count = len(self._gate.numbers), len(self._gate.texts)
        effects, by_chance = np.zeros_like(self._own), np.zeros_like(self._own)
        tracks = (slice(first, first + count), slice(first + count, first + 2 * count))
        effects[:first, Cause.VALUES], by_chance[:first, Cause.VALUES] = found.columns[:first], found.by_chance[:first]
        for cause, track in zip((Cause.LENGTH, Cause.CHARACTERS), tracks, strict=True):
            effects[first:, cause], by_chance[first:, cause] = found.columns[track], found.by_chance[track]
        effects[first:, Cause.VALUES] = found.values
        self._usual_before = self._usual.copy()
        shares = {
            Cause.UNSEEN: (slice(first, None), found.unseen),
            Cause.REFUSED: (slice(None), self._refused_now / max(1, self._open.records)),
        }
        for cause, (which, share) in shares.items():
            usual = self._usual[which, cause]
            effects[which, cause] = np.abs(share - usual)
            self._usual[which, cause] = usual + (share - usual) * (_USUAL if self._windows > _RENEWED else 1.0)
        by_chance[first:, [Cause.VALUES, Cause.UNSEEN]] = found.shares_by_chance
        effects[:, Cause.MISSING] = found.missing[: len(self.fields)]
        by_chance[:, Cause.MISSING] = found.shares_by_chance
        return effects, np.maximum(0.0, effects - by_chance)

    def _judge(self, rows: WindowRows, now: Columns, effects: Floats, excess: Floats, unusual: Floats) -> None:
        """Name the fields that have changed, and learn from the others how far they move."""
        settled = self._settled <= self._windows
        departs = settled & (unusual > 0).any(axis=1) & (self._windows >= _LEARNING)
        for name in [name for name, one in self._changed.items() if self._windows - one.window > _LASTS]:
            del self._changed[name]
        found, named = list[Changed](), np.zeros(len(self.fields), np.bool_)
        for at in np.flatnonzero(departs).tolist():
            self._settled[at] = self._windows + _SETTLES
            cause = Cause(int((unusual[at] * _PLAIN).argmax()))
            one = self._change(at, cause, rows, now, float(effects[at, cause]))
            if one is not None:
                found.append(one)
                named[at] = True
        # A jump that recurs, as each morning, is known from the third time on.
        jumps = np.where(self._own <= 0.3 * excess, excess / 2, excess)
        learnt = np.where(named[:, None], jumps, np.where(departs[:, None], 0.0, self._latest))
        self._own = np.maximum(self._own * _FORGETS, learnt)
        self._latest = np.where(settled[:, None] & ~departs[:, None], excess, 0.0)
        if found:
            self._tell(sorted(found, key=lambda one: -one.effect))

    def _change(self, at: int, cause: Cause, rows: WindowRows, now: Columns, effect: float) -> Changed | None:
        """Return what has changed of a field; None if it is as before its last change again."""
        assert self._reference is not None
        name, numbers = self.fields[at].name, len(self._gate.numbers)
        # It may have begun in the window before.
        rows = WindowRows.joined([self._with_derived(self._last), rows])
        if not len(rows):
            return None  # all are set aside, which the gate of floods says
        more, what = self._gained(at, cause, rows, now)
        # What is said of the values is said of those since then.
        order = _since(more, rows)
        since, has = rows.rows(order), more.rows[order]
        known = self._changed.get(name)
        after = Portrait.of(Columns.of(since.numbers, since.texts), numbers, at)
        if known is not None and after.resembles(known.before, len(since)):
            del self._changed[name]
            return None
        first, before = int(order[0]), Portrait.of_reference(self._reference, numbers, at)
        where = self._concentrated(at, has, since)
        if where is not None:
            since, has = since.rows(where[1]), has[where[1]]
            after = Portrait.of(Columns.of(since.numbers, since.texts), numbers, at)
        share = float(has.mean())
        shares = (1 - more.before, 1 - share) if more.less else (more.before, share)
        if cause is Cause.REFUSED:
            shares = float(self._usual_before[at, cause]), self._refused_now[at] / max(1, self._open.records)
        text = change_of(cause, before, after, None if what is None else (what, *shares))
        if where is not None:
            text += f", {where[0]}"
        since_ms, offset = int(rows.times[first]), int(rows.offsets[first])
        partition = str(self._open.partitions[int(rows.partitions[first])])
        return Changed(
            field=name,
            cause=cause,
            text=f"{text}, since {_clock(since_ms)}, {partition} offset {offset}",
            effect=effect,
            since_ms=since_ms,
            partition=partition,
            offset=offset,
            window=self._windows,
            first=name,
            before=before,
        )

    def _gained(self, at: int, cause: Cause, rows: WindowRows, now: Columns) -> tuple[Gained, str | None]:
        """Return which rows have what there is more of now, or less, and what they have in common, in words."""
        assert self._reference is not None
        then, first = self._reference, len(self._gate.numbers)
        track = at if cause is not Cause.CHARACTERS else at + len(self._gate.texts)
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
            return Gained.of(new, float(self._usual_before[at, cause])), "values that were not there before in"
        value, _ = most_changed(now.texts[at - first], now.rows, known, then.rows)
        has = np.fromiter((one == value for one in texts), np.bool_, len(texts))
        return Gained.of(has, known.get(value or b"", 0) / max(1, then.rows)), "one of its values"

    def _concentrated(self, at: int, more: Bits, rows: WindowRows) -> tuple[str, Bits] | None:
        """Return in which slice a change is, in words, and its rows; None if it is in no one more than in others."""
        best, found = _APART, None
        first = len(self._gate.numbers)
        for column in self._slices:
            if first + column == at:
                continue
            values = rows.texts[:, column]
            for value in {*values.tolist()}:
                has = values == value
                if not _FEWEST_OF_SLICE <= has.sum() <= len(has) - _FEWEST_OF_SLICE:
                    continue
                inside, outside = float(more[has].mean()), float(more[~has].mean())
                if inside - outside > best and inside > 2 * outside:
                    best = inside - outside
                    shown = value.decode("utf-8", "replace")
                    text = f"in {percent(inside)} of the records with {self._gate.texts[column].name}={shown}"
                    found = text, np.asarray(has, np.bool_)
        return found

    def _tell(self, found: Sequence[Changed]) -> None:
        """Mark what has changed in this window, unless it belongs to the mark before."""
        together = self._mark is not None and self._windows - self._mark[1] <= _TOGETHER
        first = self._mark[0] if together and self._mark is not None else found[0].field
        for one in found:
            self._changed[one.field] = replace(one, first=first)
        if together:
            return
        self._mark = first, self._windows
        self._marks += 1
        leading, others = found[0], [one.field for one in found[1:]]
        more = f", and {len(others) - _NAMED_WITH} more" if len(others) > _NAMED_WITH else ""
        beside = f"; with it {', '.join(others[:_NAMED_WITH])}{more}" if others else ""
        self._report(
            EventKind.INPUT_CHANGED,
            f"{leading.field}: {leading.text}{beside}.",
            Severity.WARNING,
            field=leading.field,
            cause=leading.cause.name.lower(),
            distance=round(leading.effect, 4),
            since_ms=leading.since_ms,
            partition=leading.partition,
            offset=leading.offset,
            others=others,
        )

    # The state.

    def snapshot(self) -> PartState:
        """Copy all of it."""
        arrays: dict[str, Any] = {
            **self._open.rows().arrays("open"),
            **self._last.arrays("last"),
            "own": self._own.copy(),
            "latest": self._latest.copy(),
            "usual": self._usual.copy(),
            "settled": self._settled.copy(),
            "refused_now": self._refused_now.copy(),
        }
        for kind, windows in (("past", self._past), ("next", self._next)):
            for at, one in enumerate(windows):
                arrays |= _arrays_of(f"{kind}.{at}", one)
        facts = {
            "fields": self._names(),
            "open": self._open.facts(),
            "windows": self._windows,
            "past": len(self._past),
            "next": len(self._next),
            "changed": [one.to_json() for one in self._changed.values()],
            "mark": None if self._mark is None else list(self._mark),
            "refused": self._refused,
            "cut": self._cut,
        }
        return PartState(arrays=arrays, facts=_copied(facts))

    def restore(self, state: PartState) -> None:
        """Take it back; that of records with other fields begins anew."""
        self._begin()
        self.view = None
        facts, arrays = _copied(state.facts), state.arrays
        if facts.get("fields") != self._names():
            return
        self._open.load(facts["open"], WindowRows.of_arrays(arrays, "open", self._gate))
        self._last = WindowRows.of_arrays(arrays, "last", self._gate)
        self._own, self._latest, self._usual, self._settled, self._refused_now = (
            np.array(arrays[name]) for name in ("own", "latest", "usual", "settled", "refused_now")
        )
        self._windows = int(facts["windows"])
        self._past, self._next = (
            [_digest_of(f"{kind}.{at}", arrays, len(self._gate.texts)) for at in range(facts[kind])]
            for kind in ("past", "next")
        )
        if self._past:
            self._refer()
        self._changed = {one["field"]: Changed.of_json(one) for one in facts["changed"]}
        self._mark = None if facts["mark"] is None else (facts["mark"][0], int(facts["mark"][1]))
        self._refused, self._cut = facts["refused"], facts["cut"]

    def _names(self) -> list[list[Any]]:
        return [[one.name, "text" if one.text else str(np.dtype(self._gate.dtype))] for one in self.fields]


def _arrays_of(name: str, digest: Digest) -> dict[str, Column]:
    """Return a digest as arrays of a checkpoint."""
    values = np.array([value for counts in digest.texts for value in counts], object)
    counts = np.array([count for counts in digest.texts for count in counts.values()], np.int64)
    return {
        f"{name}.points": digest.points,
        f"{name}.present": digest.present,
        f"{name}.rows": np.array([digest.rows]),
        f"{name}.sizes": np.array([len(counts) for counts in digest.texts], np.int64),
        f"{name}.counts": counts,
        **packed(f"{name}.values", values),
    }


def _digest_of(name: str, arrays: Mapping[str, Any], texts: int) -> Digest:
    """Return the digest that `_arrays_of` has written."""
    found: list[dict[bytes, int]] = [{} for _ in range(texts)]
    if texts:
        values, counts = unpacked(arrays, f"{name}.values", ()).tolist(), arrays[f"{name}.counts"].tolist()
        ends = np.cumsum(arrays[f"{name}.sizes"]).tolist()
        for at, end in enumerate(ends):
            first = ends[at - 1] if at else 0
            found[at] = dict(zip(values[first:end], counts[first:end], strict=True))
    points, present = (np.array(arrays[f"{name}.{column}"]) for column in ("points", "present"))
    return Digest(points, present, found, int(arrays[f"{name}.rows"][0]))


def _since(more: Gained, rows: WindowRows) -> Places:
    """Return the rows from that on from which there is more than before, by time: what came before it was as usual."""
    order = np.lexsort((rows.offsets, rows.times))
    has = more.rows[order].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(has - (more.before + has.mean()) / 2)])
    return order[int(sums[:-1].argmin()) :]


def _clock(time_ms: int) -> str:
    """Return an event time to the second, or as a number if no calendar has it."""
    try:
        return f"{moment(time_ms / 1000)[:19]}Z"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"


def _copied(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values that share nothing with these."""
    found: dict[str, Any] = json.loads(json.dumps(dict(facts)))
    return found
