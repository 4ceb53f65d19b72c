"""The score of each slice: the answers of a call, tallied by the values of some fields of their records.

The first `MOST_VALUES` values of a field are held, in the sequence in which records with them are learnt; the rest are
`other`. So a value that is held has been counted from its first record on, and which are held is a function of what is
learnt, as the weights are. `all` are the records of every slice.

In a group answers wait until all members report. These agree first on which values are held, by where each value came
first at any of them; then each counts its answers, and the chief adds them up.

Owns the part `slices`: which values are held, and their tallies since checkpoint 0. Runs on the trainer's thread. The
values come from the gate, on the generator's thread.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from millrace.consumers.records import Partition
from millrace.pipelines.gates.slice_gate import Sliced, SliceGate
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.group_report import CHIEF
from millrace.training.telemetry.label_sums import Floats, Labels
from millrace.training.telemetry.tallies import (
    ABSOLUTE,
    BINNED,
    ERROR,
    LOSS,
    RECORDS,
    RIGHT,
    SQUARED,
    SQUARED_LOSS,
    Column,
    Tallies,
    Whole,
    WindowedTallies,
    add_tallies,
    answered,
    score_columns,
    scored_in,
    tallies,
    tallies_in,
    tallies_of_all,
)
from millrace.training.telemetry.watcher import Call, Watcher
from millrace.training.trainer.slices.figures import HIGHER_IS_BETTER, NAME, WORST, SliceFigures, worst_scores

MOST_VALUES = 50
_AT_ONCE = 1 << 16
"""Answers that are counted together: to add up the tallies of all slices takes a third of a millisecond."""
_EVERY_S = 5.0
"""How often the figures are computed, which takes some milliseconds."""
ALL, OTHER = "all", "other"
_FEWEST = 10
"""Answers, of each label for an area, by which a mean's interval can be told: of fewer it may be nothing wide."""
_Z = 1.959964
"""Of an interval of 95 %."""
SCORES: Mapping[Labels, tuple[str, ...]] = {
    Labels.BINARY: ("auc", "accuracy", "log_loss"),
    Labels.CLASSES: ("accuracy", "log_loss"),
    Labels.ONE_HOT: ("accuracy", "log_loss"),
    Labels.NUMBERS: ("mae", "rmse", "bias"),
}
"""By the kind of label; slices are sorted by the first one."""
Score = tuple[float, float, float]
"""A value, and where its interval begins and ends; NaN for no interval."""
First = tuple[int, str, int, int, str]
"""Where a value came first: the call of a report, the topic, the partition, the offset; and the value."""


class Coded(NamedTuple):
    """The values of one field, of the rows of a call."""

    names: Sequence[str]
    codes: Whole
    """The place of each row's value among the names; their number for a row of which nothing is known."""

    def placed(self, held: Mapping[str, int]) -> Whole:
        """Return the place of each row's value among those that are held; -1 for others."""
        return np.array([*(held.get(name, -1) for name in self.names), -1])[self.codes]

    def new(self, held: Mapping[str, int], where: tuple[Whole, Whole]) -> Iterable[tuple[str, int]]:
        """Return the values that are not held, each with the row in which it is first, in the sequence of these.

        `where` are the rows' partitions and offsets.
        """
        partitions, offsets = where
        new = np.flatnonzero((self.placed(held) < 0) & (self.codes < len(self.names)))
        new = new[np.lexsort((offsets[new], partitions[new]))]
        found = dict[str, int]()
        for row, code in zip(new.tolist(), self.codes[new].tolist(), strict=True):
            found.setdefault(self.names[code], row)
        return found.items()


class Unplaced(NamedTuple):
    """Answers of a member of a group that wait until it is agreed which values are held."""

    columns: list[Column]
    each: int
    """Answers to a row."""
    fields: Mapping[str, Coded]
    where: tuple[Whole, Whole]
    partitions: Mapping[int, Partition]
    call: int


class SliceScores(Watcher):
    """The scores of the slices of one model."""

    name = NAME

    def __init__(
        self,
        gate: SliceGate,
        plan: BaselinePlan,
        window_s: float,
        clock: Callable[[], float],
        *,
        in_group: bool = False,
    ) -> None:
        self._in_group = in_group
        self._unplaced: list[Unplaced] = []
        self._calls = 0
        """Those since the last report of a group."""
        self.gates = (gate,)
        self.score_names = [f"{WORST}.{name}" for name in SCORES.get(plan.labels, ()) if name in HIGHER_IS_BETTER]
        self._gate, self._plan, self._tallies = gate, plan, WindowedTallies(window_s, clock)
        self._held: dict[str, dict[str, int]] = {field: {} for field in gate.fields}
        """By field: the values that are held, with their places."""
        self._waiting: list[tuple[list[Column], Mapping[str, Whole]]] = []
        """Answers that are not counted yet, each with the place of its value by field, -1 for others."""
        self._rows = 0
        self._clock, self._figures, self._seen_at = clock, dict[str, SliceFigures](), -math.inf

    def called(self, call: Call) -> None:
        """Take in what a call has scored."""
        taken = {span.index: self._gate.take(span.partition, span.end) for span in call.facts.spans}
        for piece in scored_in(call):
            if (rows := answered([piece], self._plan)) is None:
                continue
            # A label of several columns has as many answers to a record.
            where, each = rows.places(), rows.labels.size // len(rows.labels)
            at = _located(*where, taken)
            fields = {field: _coded(field, at, taken) for field in self._held}
            columns = score_columns(rows, self._plan.labels)
            if self._in_group:
                partitions = {span.index: span.partition for span in call.facts.spans}
                self._unplaced.append(Unplaced(columns, each, fields, where, partitions, self._calls))
                continue
            for field, held in self._held.items():
                if len(held) < MOST_VALUES:
                    _hold((name for name, _ in fields[field].new(held, where)), held)
            self._wait(columns, fields, each)
        self._calls += 1
        if self._rows >= _AT_ONCE:
            self._count()

    def _wait(self, columns: list[Column], fields: Mapping[str, Coded], each: int) -> None:
        """Have answers wait until they are counted."""
        places = {field: np.repeat(fields[field].placed(held), each) for field, held in self._held.items()}
        self._waiting.append((columns, places))
        self._rows += len(next(iter(places.values())))

    def agree(self, gather: Callable[[bytes], list[bytes]]) -> None:
        """Hold the values that the chief holds, and of those that are new the ones that came first at any member."""
        held = json.loads(gather(json.dumps({field: [*held] for field, held in self._held.items()}).encode())[CHIEF])
        self._held = {field: {value: at for at, value in enumerate(held[field])} for field in self._gate.fields}
        # No other value of this member can be among the first of all.
        news = {field: self._new(field)[: MOST_VALUES - len(held)] for field, held in self._held.items()}
        said = [json.loads(raw) for raw in gather(json.dumps(news).encode())]
        for field, held in self._held.items():
            _hold((one[-1] for one in sorted(tuple(one) for each in said for one in each[field])), held)
        for one in self._unplaced:
            self._wait(one.columns, one.fields, one.each)
        self._unplaced, self._calls = [], 0

    def _new(self, field: str) -> list[First]:
        """Return the values of what waits that are not held, in the sequence in which they came."""
        held = self._held[field]
        if len(held) == MOST_VALUES:
            return []
        found = dict[str, First]()
        for one in self._unplaced:
            partitions, offsets = one.where
            for name, row in one.fields[field].new(held, one.where):
                partition = one.partitions[int(partitions[row])]
                found.setdefault(name, (one.call, partition.topic, partition.number, int(offsets[row]), name))
        return sorted(found.values())

    def share(self) -> PartState:
        """Return the tallies of the calls since this was asked last."""
        self._count()
        share = PartState(arrays=dict(self._tallies.arrays()))
        self._tallies.load({})
        return share

    def take_shares(self, shares: Sequence[PartState]) -> None:
        """Add what the other members have tallied."""
        for share in shares:
            self._tallies.add(tallies_in(share.arrays))

    def _count(self) -> None:
        """Count the answers that wait, by slice."""
        if not self._waiting:
            return
        columns = [
            Column(
                one.name,
                one.size,
                None if one.cells is None else np.concatenate([some[at].cells for some, _ in self._waiting]),
                None if one.values is None else np.concatenate([some[at].values for some, _ in self._waiting]),
            )
            for at, one in enumerate(self._waiting[0][0])
        ]
        found = {ALL: tallies_of_all(columns, self._rows)}
        for field, held in self._held.items():
            places = np.concatenate([some[field] for _, some in self._waiting])
            places = np.where(places < 0, len(held), places)
            groups = tallies(columns, places, len(held) + 1)
            here = np.bincount(places, minlength=len(groups))
            named = zip([*held, OTHER], groups, here, strict=True)
            for name, one, answers in named:
                if answers:
                    # A value may be called as the rest is.
                    add_tallies(found, {f"{field}={name}": one})
        self._tallies.add(found)
        self._waiting, self._rows = [], 0

    def figures(self) -> Mapping[str, SliceFigures]:
        """Return the slices that had records in the window, the worst first, as they were some seconds ago."""
        now = self._clock()
        if now - self._seen_at >= _EVERY_S:
            self._figures, self._seen_at = self._computed(), now
        return self._figures

    def scores(self) -> Mapping[str, float]:
        """Return the worst score of all slices with enough records, as it was some seconds ago."""
        return worst_scores(self._figures)

    def _computed(self) -> dict[str, SliceFigures]:
        self._count()
        kind, window, total = self._plan.labels, self._tallies.window(), self._tallies.total
        found = {name: scores_of(kind, one) for name, one in window.items()}
        first = SCORES[kind][0] if kind in SCORES else ""

        def worse(name: str) -> tuple[bool, float]:
            _, lowest, highest = found[name].get(first, (math.nan,) * 3)
            better_end = highest if HIGHER_IS_BETTER.get(first, True) else -lowest
            # What has no interval is told by too few records.
            return name != ALL, better_end if math.isfinite(better_end) else math.inf

        return {
            name: SliceFigures(
                records=records_in(window[name]),
                values={score: at[0] for score, at in found[name].items()},
                lowest={score: at[1] for score, at in found[name].items() if math.isfinite(at[1])},
                highest={score: at[2] for score, at in found[name].items() if math.isfinite(at[2])},
                cumulative={score: at[0] for score, at in scores_of(kind, total[name]).items()},
                cumulative_records=records_in(total[name]),
            )
            for name in sorted(found, key=worse)
        }

    def snapshot(self) -> PartState:
        """Copy what is held, and the tallies since checkpoint 0."""
        self._count()
        held = {field: [*values] for field, values in self._held.items()}
        return PartState(arrays=dict(self._tallies.arrays()), facts={"labels": str(self._plan.labels), "held": held})

    def restore(self, state: PartState) -> None:
        """Take it back; fields that were not sliced before, and labels of another kind, begin anew."""
        self._waiting, self._rows, self._seen_at = [], 0, -math.inf
        self._unplaced, self._calls = [], 0
        same = state.facts.get("labels") == self._plan.labels
        held = state.facts.get("held", {}) if same else {}
        self._held = {
            field: {value: place for place, value in enumerate(held.get(field, ()))} for field in self._gate.fields
        }
        known = (f"{ALL}/", *(f"{field}=" for field in held if field in self._held))
        self._tallies.load({name: one for name, one in state.arrays.items() if same and name.startswith(known)})


def _located(partitions: Whole, of_rows: Whole, taken: Mapping[int, Sequence[Sliced]]) -> Whole:
    """Return the place of each row's record among all that were taken; -1 for none."""
    at, first = np.full(len(of_rows), -1), 0
    for index, pieces in taken.items():
        offsets = np.concatenate([np.empty(0, np.int64), *(piece.offsets for piece in pieces)])
        mine = np.flatnonzero(partitions == index)
        if len(mine) and len(offsets):
            wanted = of_rows[mine]
            even = offsets[-1] - offsets[0] == len(offsets) - 1  # no offset is without a record
            places = np.clip(wanted - offsets[0] if even else offsets.searchsorted(wanted), 0, len(offsets) - 1)
            at[mine] = np.where(offsets[places] == wanted, first + places, -1)
        first += len(offsets)
    return at


def _coded(field: str, at: Whole, taken: Mapping[int, Sequence[Sliced]]) -> Coded:
    """Return the values of some rows; `at` is the place of each row's record among all that were taken."""
    pieces = [piece.fields[field] for some in taken.values() for piece in some]
    names = [name for piece in pieces for name in piece.values]
    starts = np.cumsum([0, *(len(piece.values) for piece in pieces)])
    # A record of which nothing is known is the last of all.
    codes = np.concatenate(
        [*(piece.codes + start for piece, start in zip(pieces, starts[:-1], strict=True)), [len(names)]]
    ).astype(np.int64)[at]
    return Coded(names, codes)


def _hold(new: Iterable[str], held: dict[str, int]) -> None:
    """Hold values that are new, in this sequence, until there are enough."""
    for name in new:
        if len(held) < MOST_VALUES:
            held.setdefault(name, len(held))


def records_in(found: Tallies) -> int:
    """Return how many answers a slice has."""
    return int(found[BINNED].sum() if BINNED in found else found[RECORDS][0])


def scores_of(kind: Labels, found: Tallies) -> dict[str, Score]:
    """Return the scores of some answers, each with its interval."""
    count = records_in(found)
    if kind is Labels.NUMBERS:
        mae, mean, square = (found[name][0] / count for name in (ABSOLUTE, ERROR, SQUARED))
        return {
            "mae": _mean(mae, square, count),
            "rmse": (math.sqrt(square), math.nan, math.nan),
            "bias": _mean(mean, square, count),
        }
    scores: dict[str, Score] = {}
    if kind is Labels.BINARY:
        missed, came = found[BINNED].reshape(2, -1)
        if missed.any() and came.any():
            scores["auc"] = _auc(missed, came)
        half = len(came) // 2
        right = missed[:half].sum() + came[half:].sum()
    else:
        right = found[RIGHT][0]
    return {
        **scores,
        "accuracy": _share(right, count),
        "log_loss": _mean(found[LOSS][0] / count, found[SQUARED_LOSS][0] / count, count),
    }


def _share(right: float, count: int) -> Score:
    """Return a share with Wilson's interval."""
    share, z2 = right / count, _Z * _Z / count
    middle, off = share + z2 / 2, _Z * math.sqrt(share * (1 - share) / count + z2 / count / 4)
    return float(share), float((middle - off) / (1 + z2)), float((middle + off) / (1 + z2))


def _mean(mean: float, square: float, count: int) -> Score:
    """Return a mean with the interval of the normal distribution."""
    off = math.nan if count < _FEWEST else _Z * math.sqrt(max(0.0, square - mean * mean) / count)
    return float(mean), float(mean - off), float(mean + off)


def _auc(missed: Floats, came: Floats) -> Score:
    """Return the area under the ROC curve of answers in bins, with DeLong's interval; ties count by half."""
    below, above = np.cumsum(missed) - missed / 2, came.sum() - np.cumsum(came) + came / 2
    of_came, of_missed = below / missed.sum(), above / came.sum()
    auc = (came * of_came).sum() / came.sum()
    variance = sum(
        (counts * (shares - auc) ** 2).sum() / max(1.0, counts.sum() - 1) / counts.sum()
        for counts, shares in ((came, of_came), (missed, of_missed))
    )
    if min(missed.sum(), came.sum()) < _FEWEST:
        return float(auc), math.nan, math.nan
    off = _Z * math.sqrt(variance)
    return float(auc), float(max(0.0, auc - off)), float(min(1.0, auc + off))
