"""The inputs: whether the fields of the records are as they were, and since when not.

At the end of each window its sample is compared with that of the windows before, field by field. A field has changed if
its distance exceeds what chance explains by more than a least effect and by more than it has done in the field's own
past. So a field that always moves, as an id or a time, is never named, and one that does not is not, however many
records there are. Fields that change within a minute are one mark, with the one that has changed most in front.

Owns the part `inputs`: the open window, the rows of those before, how far each field has moved in its past, and what
has changed. It is a function of the records and of where calls end. Calls wait for each other, until the figures are
asked for at the latest: once a second. In a group the calls of all members wait until they report, and the chief takes
in what each call has learnt at all of them. Runs on the trainer's thread; `view` is for any.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from millrace.pipelines.gates.input_gate import InputGate
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity, ignore_event
from millrace.training.telemetry.watcher import Call, Watcher
from millrace.training.trainer.inputs.changes import Changed, ComparedWindow, clock
from millrace.training.trainer.inputs.distances import (
    COMPARED,
    Cause,
    Columns,
    Digest,
    Distances,
    Floats,
    Reference,
    distances,
    with_derived,
)
from millrace.training.trainer.inputs.figures import CHANGED, NAME, InputFigures
from millrace.training.trainer.inputs.hours import HoursOfInputs
from millrace.training.trainer.inputs.inputs_view import InputsView
from millrace.training.trainer.inputs.open_window import WINDOW_MS, OpenWindow, WindowRows
from millrace.training.trainer.inputs.shared_calls import SeenCall, received, sent
from millrace.training.trainer.inputs.unread_fields import UnreadFields, named

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
_AT_ONCE = 1 << 16
"""Records whose calls wait until they are added: right after a step of the model this takes several times as long."""
_NAMED_WITH = 5
"""Further fields that the text of a mark names."""


class Inputs(Watcher):
    """The inputs of one model."""

    name = NAME
    score_names = (CHANGED,)

    def __init__(
        self,
        gate: InputGate,
        slices: Collection[str] = (),
        report: ReportEvent = ignore_event,
        read: Collection[str] = (),
        *,
        in_group: bool = False,
    ) -> None:
        """`slices` are the fields by whose values a change may be told apart, `read` the sources that are read."""
        self._in_group = in_group
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
        self.unread = UnreadFields(read)
        self._hours = HoursOfInputs()
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
        self.unread.clear()
        self._hours.clear()
        self._waiting: list[SeenCall] = []
        """Calls whose records are not in the window yet."""
        self._records = 0

    def called(self, call: Call) -> None:
        """Take in the records of a call."""
        self._waiting.append([(span, self._gate.take(span.partition, span.end)) for span in call.facts.spans])
        self._records += sum(span.records for span in call.facts.spans)
        if self._records >= _AT_ONCE:
            self._catch_up()

    def share(self) -> PartState:
        """Return the records of the calls since this was asked last."""
        return sent(self._taken(), self._gate)

    def take_shares(self, shares: Sequence[PartState]) -> None:
        """Add the calls that wait, each with what the other members have learnt by it."""
        every = [self._taken(), *(received(share, self._gate) for share in shares)]
        self._add([sorted(chain(*same), key=lambda one: one[0].partition) for same in zip(*every, strict=True)])

    def _taken(self) -> list[SeenCall]:
        waiting, self._waiting, self._records = self._waiting, [], 0
        return waiting

    def _catch_up(self) -> None:
        """Add the calls that wait, unless those of other members are to come."""
        if not self._in_group:
            self._add(self._taken())

    def _add(self, calls: Iterable[SeenCall]) -> None:
        """Add calls to the window, one after another, and compare it where it is over."""
        for call in calls:
            records = 0
            for span, taken in call:
                records += span.records - span.filtered
                for name, count in span.truncated.items():
                    self._cut[name] = self._cut.get(name, 0) + count
                for seen in taken:
                    self._open.add(span.partition, seen.kept.sample, seen.rows, seen.times)
                    for offset, time_ms, types in seen.unread():
                        self.unread.note((str(span.partition), offset, time_ms), types)
                    for (reason, field), count in Counter(one[1:3] for one in seen.refused()).items():
                        if field is not None:
                            counts = self._refused.setdefault(field, {})
                            counts[reason.value] = counts.get(reason.value, 0) + count
                            self._refused_now[self._by_source.get(field, [])] += count
            if self._open.ended(records):
                self._close()

    def figures(self) -> InputFigures | None:
        """Return how the fields are, by name; None before the first window is over."""
        self._catch_up()
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
        every, compared = self._open.in_full(), self._open.least(COMPARED)
        rows = self._with_derived(compared)
        now = Columns.of(rows.numbers, rows.texts)
        effects, unusual = np.zeros_like(self._own), np.zeros_like(self._own)
        if self._reference is not None:
            effects, excess = self._effects(distances(now, self._reference))
            unusual = excess - _LEAST - _OWN * self._own
            self._judge(rows, now, effects, excess, unusual)
        self._tell_unread()
        self._windows += 1
        if now.rows:  # none, if all its records were set aside
            self._next.append(Digest.of(now))
            self._hours.add(
                self._next[-1], self._open.reached_ms, [one.name for one in self.fields], len(self._gate.numbers)
            )
        if len(self._next) == _RENEWED:
            self._past = [*self._past, *self._next][-_REFERENCE:]
            self._next = []
            self._refer()
        self.view = InputsView(
            fields=self.fields,
            numbers=len(self._gate.numbers),
            compared=now,
            rows=lambda: self._with_derived(every()),
            then=self._reference,
            effects=effects,
            unusual=unusual.max(axis=1, initial=-1.0),
            changed=dict(self._changed),
            refused={name: dict(counts) for name, counts in self._refused.items()},
            cut=dict(self._cut),
            hours=self._hours.kept,
            unread=self.unread.all(),
            looked_at=self.unread.records,
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
        # If all are set aside there is no row, which the gate of floods says.
        if departs.any() and len((window := self._compared(rows, now)).rows):
            for at in np.flatnonzero(departs).tolist():
                self._settled[at] = self._windows + _SETTLES
                known = self._changed.pop(self.fields[at].name, None)
                cause = Cause(int((unusual[at] * _PLAIN).argmax()))
                before = None if known is None else known.before
                if (one := window.change(at, cause, float(effects[at, cause]), before)) is not None:
                    found.append(one)
                    named[at] = True
        # A jump that recurs, as each morning, is known from the third time on.
        jumps = np.where(self._own <= 0.3 * excess, excess / 2, excess)
        learnt = np.where(named[:, None], jumps, np.where(departs[:, None], 0.0, self._latest))
        self._own = np.maximum(self._own * _FORGETS, learnt)
        self._latest = np.where(settled[:, None] & ~departs[:, None], excess, 0.0)
        if found:
            self._tell(sorted(found, key=lambda one: -one.effect))

    def _compared(self, rows: WindowRows, now: Columns) -> ComparedWindow:
        assert self._reference is not None
        return ComparedWindow(
            gate=self._gate,
            slices=self._slices,
            partitions=self._open.partitions,
            number=self._windows,
            rows=WindowRows.joined(self._gate, [self._with_derived(self._last), rows]),
            now=now,
            then=self._reference,
            usual=self._usual_before,
            refused=self._refused_now / max(1, self._open.records),
        )

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

    def _tell_unread(self) -> None:
        """Report the fields that nobody reads and that appeared, or vanished, together."""
        appeared, vanished = self.unread.news()
        if not appeared and not vanished:
            return
        clauses = [f"{named(some)} {what}" for some, what in ((appeared, "appeared"), (vanished, "vanished")) if some]
        since = [one.began for one in appeared] + [one.ended for one in vanished]
        partition, offset, time_ms = min(since, key=lambda place: place[2])
        self._report(
            EventKind.UNREAD_FIELDS,
            f"Fields that nobody reads: {', and '.join(clauses)}, since {clock(time_ms)}, {partition} offset {offset}.",
            appeared=[one.source for one in appeared],
            vanished=[one.source for one in vanished],
            since_ms=time_ms,
            partition=partition,
            offset=offset,
        )

    # The state.

    def snapshot(self) -> PartState:
        """Copy all of it."""
        self._catch_up()
        arrays: dict[str, Any] = {
            **self._open.rows().arrays("open"),
            **self._last.arrays("last"),
            "own": self._own.copy(),
            "latest": self._latest.copy(),
            "usual": self._usual.copy(),
            "settled": self._settled.copy(),
            "refused_now": self._refused_now.copy(),
            "unread": self.unread.array(),
            **self._hours.arrays(),
        }
        for kind, windows in (("past", self._past), ("next", self._next)):
            for at, one in enumerate(windows):
                arrays |= one.arrays(f"{kind}.{at}")
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
        same = facts.get("fields") == self._names()
        # Both know the fields by their names, whichever there are now.
        self.unread.load(arrays.get("unread"))
        self._hours.load(arrays, len(self._gate.texts) if same else None)
        if not same:
            return
        self._open.load(facts["open"], WindowRows.of_arrays(arrays, "open", self._gate))
        self._last = WindowRows.of_arrays(arrays, "last", self._gate)
        self._own, self._latest, self._usual, self._settled, self._refused_now = (
            np.array(arrays[name]) for name in ("own", "latest", "usual", "settled", "refused_now")
        )
        self._windows = int(facts["windows"])
        self._past, self._next = (
            [Digest.of_arrays(f"{kind}.{at}", arrays, len(self._gate.texts)) for at in range(facts[kind])]
            for kind in ("past", "next")
        )
        if self._past:
            self._refer()
        self._changed = {one["field"]: Changed.of_json(one) for one in facts["changed"]}
        self._mark = None if facts["mark"] is None else (facts["mark"][0], int(facts["mark"][1]))
        self._refused, self._cut = facts["refused"], facts["cut"]

    def _names(self) -> list[list[Any]]:
        return [[one.name, "text" if one.text else str(np.dtype(self._gate.dtype))] for one in self.fields]


def _copied(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values that share nothing with these."""
    found: dict[str, Any] = json.loads(json.dumps(dict(facts)))
    return found
