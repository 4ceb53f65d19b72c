"""Tallies: counts and sums over learnt rows and the model's answers to them, for all rows or by groups of them.

Tallies are added up, over calls and over groups, so that those over a window and since checkpoint 0 are exact whatever
was restored meanwhile. Probabilities are counted in bins that are even in the log-odds, so that rare events are told
apart as well; an area under the ROC curve is that of the answers rounded to these bins. Numbers are counted in bins of
4 % of their value. Nothing is weighted: each record counts once.

`WindowedTallies` is used on the trainer's thread; all else is pure.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Floats, Labels
from millrace.training.telemetry.watcher import Call, numbers_in, untyped_target_of

ODDS_BINS = 512
_ODDS = 8.0
"""The bins reach from minus this to this log-odds: from a probability of 0.03 % to one of 99.97 %."""
_LEAST, _MOST, _GROWTH = 1e-9, 1e19, 1.04
"""The least and the greatest number that is told apart: all of 64 bits, as times in nanoseconds, and the step."""
_STEPS = int(np.ceil(np.log(_MOST / _LEAST) / np.log(_GROWTH)))
NUMBER_BINS = 2 * _STEPS + 1
SURE = 1e-7
"""Keras takes no probability for nearer to 0 or 1 in a log loss."""
WINDOW_PARTS = 20
RECORDS, RIGHT, LOSS, SQUARED_LOSS, PROBABILITY = "records", "right", "loss", "squared_loss", "probability"
BINNED, CONFUSION = "binned", "confusion"
ERROR, ABSOLUTE, SQUARED = "error", "absolute_error", "squared_error"
RESIDUALS, ANSWERS, LABELS = "residuals", "answers", "labels"
TRUTH = (RECORDS, RESIDUALS, ANSWERS, LABELS, CONFUSION, BINNED, PROBABILITY)
"""The names of `truth_columns`, of all kinds of labels."""
Whole = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float32]


def _nowhere() -> tuple[Whole, Whole]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


class Answered(NamedTuple):
    """Learnt rows, with the answers that were scored."""

    labels: npt.NDArray[Any]
    """A row and a column for each, or the number of a class for each row."""
    answers: Values
    """Probabilities, if the labels are 0 or 1 or classes; numbers otherwise."""
    places: Callable[[], tuple[Whole, Whole]] = _nowhere
    """Returns the partition of each row, as its place, and its offset. They are copied then, as few are asked for."""


class ScoredRows(NamedTuple):
    """Rows of a call with the answers to them, as tensors and arrays of the call."""

    labels: Any
    """The tensor; that of the only feature, where there is no label."""
    outputs: Values
    learnt: Bits
    partitions: Any
    offsets: Any


def scored_in(call: Call) -> list[ScoredRows]:
    """Return the rows of a call with their answers, piece by piece. They hold none of its other features."""
    return [
        ScoredRows(untyped_target_of(rows), outputs, learnt, rows.partitions, rows.offsets)
        for (rows, learnt), outputs in zip(call.rows, call.outputs, strict=False)
    ]


def answered(pieces: Sequence[ScoredRows], plan: BaselinePlan) -> Answered | None:
    """Return the learnt rows of some pieces of the same model, without those that give no number; None for none.

    Pieces whose labels are not of the plan's kind have none.
    """
    columns: list[list[npt.NDArray[Any]]] = []
    used: list[ScoredRows] = []
    for piece in pieces:
        target, width = numbers_in(piece.labels), piece.outputs.shape[-1]
        if target is None or not width or plan.labels is Labels.NONE:
            continue
        of_piece = [_rows_in(piece, target), _rows_in(piece, piece.outputs)]
        if of_piece[0].shape[1] == (1 if plan.labels is Labels.CLASSES else width):
            columns.append(of_piece)
            used.append(piece)
    if not columns:
        return None
    labels, answers = columns[0] if len(columns) == 1 else map(np.concatenate, zip(*columns, strict=True))
    width = answers.shape[1]
    good = np.isfinite(answers).all(axis=1) if width > 1 else np.isfinite(answers[:, 0])
    if plan.labels in {Labels.CLASSES, Labels.ONE_HOT}:
        labels = labels[:, 0].astype(np.int64) if plan.labels is Labels.CLASSES else labels.argmax(axis=1)
        good &= (labels >= 0) & (labels < width)
    else:
        good &= np.isfinite(labels).all(axis=1) if width > 1 else np.isfinite(labels[:, 0])
    keep = slice(None) if good.all() else good
    labels, answers = labels[keep], answers[keep]
    if not len(labels):
        return None
    answers = probabilities_of(answers, plan) if plan.logits else answers

    def places() -> tuple[Whole, Whole]:
        partitions, offsets = (
            np.concatenate([_rows_in(piece, getattr(piece, name).numpy())[:, 0] for piece in used])[keep]
            for name in ("partitions", "offsets")
        )
        return partitions, offsets

    return Answered(labels, answers, places)


def _rows_in(piece: ScoredRows, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the learnt rows of a column of a piece: a row and a column for each."""
    rows = column.reshape(piece.learnt.size, -1)
    return rows if piece.learnt.all() else rows[piece.learnt.ravel()]


def probabilities_of(logits: Values, plan: BaselinePlan) -> Values:
    """Return the probabilities of logits, by the kind of the labels."""
    if plan.labels is Labels.BINARY:
        return np.asarray(1 / (1 + np.exp(-np.clip(logits, -80, 80))), np.float32)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), np.float32)


class Column(NamedTuple):
    """One number of each answer, to be counted or added up by cell."""

    name: str
    size: int = 1
    """How many cells there are."""
    cells: Whole | None = None
    """The cell of each; None for one cell."""
    values: npt.NDArray[Any] | None = None
    """What is added up there; None counts."""


Tallies = dict[str, Floats]
"""By the name of the column: what is in each cell."""


def tallies(columns: Sequence[Column], groups: Whole, count: int) -> list[Tallies]:
    """Return the tallies of each of some groups; `groups` is that of each answer."""
    found: list[Tallies] = [{} for _ in range(count)]
    for name, size, cells, values in columns:
        at = groups if cells is None else groups * size + cells
        sums = np.bincount(at, values, count * size).astype(np.float64)
        for group, one in enumerate(found):
            one[name] = sums[group * size : (group + 1) * size]
    return found


def tallies_of_all(columns: Sequence[Column], answers: int) -> Tallies:
    """Return the tallies of all the answers together, of which there are so many."""
    found: Tallies = {}
    for name, size, cells, values in columns:
        if cells is None:
            found[name] = np.array([answers if values is None else values.sum(dtype=np.float64)], np.float64)
        else:
            found[name] = np.bincount(cells, values, size).astype(np.float64)
    return found


def score_columns(rows: Answered, kind: Labels) -> list[Column]:
    """Return what scores are made of, a row after another."""
    if kind is Labels.NUMBERS:
        errors = rows.answers.ravel().astype(np.float64) - rows.labels.ravel()
        sums = {ERROR: errors, ABSOLUTE: np.abs(errors), SQUARED: errors * errors}
        return [Column(RECORDS), *(Column(name, values=each) for name, each in sums.items())]
    if kind is Labels.BINARY:
        p, right = _unsure(rows.answers.ravel()), rows.labels.ravel() > 0.5
        losses, found = -np.log(np.where(right, p, 1 - p)), [_binned(right, odds_bins(p))]
    else:
        at, right = np.arange(len(rows.labels)), rows.answers.argmax(axis=1) == rows.labels
        losses = -np.log(np.clip(rows.answers[at, rows.labels], SURE, 1.0))
        found = [Column(RECORDS), Column(RIGHT, values=right)]
    return [*found, Column(LOSS, values=_exact(losses)), Column(SQUARED_LOSS, values=_exact(losses * losses))]


def truth_columns(rows: Answered, kind: Labels) -> list[Column]:
    """Return what a calibration is made of, a row after another."""
    if kind is Labels.NUMBERS:
        answers, labels = rows.answers.ravel().astype(np.float64), rows.labels.ravel().astype(np.float64)
        counted = {RESIDUALS: answers - labels, ANSWERS: answers, LABELS: labels}
        return [Column(RECORDS), *(Column(name, NUMBER_BINS, _number_bins(each)) for name, each in counted.items())]
    found = []
    if kind is Labels.BINARY:
        p, right = rows.answers.ravel(), rows.labels.ravel() > 0.5
    else:
        answer, classes = rows.answers.argmax(axis=1), rows.answers.shape[1]
        p, right = rows.answers[np.arange(len(rows.labels)), answer], answer == rows.labels
        found = [Column(CONFUSION, classes * classes, rows.labels * classes + answer)]
    bins = odds_bins(_unsure(p))
    return [*found, _binned(right, bins), Column(PROBABILITY, ODDS_BINS, bins, _exact(p))]


def _unsure(p: Values) -> Values:
    return np.clip(p, SURE, 1 - SURE)


def _binned(right: Bits, bins: Whole) -> Column:
    return Column(BINNED, 2 * ODDS_BINS, bins + np.multiply(right, ODDS_BINS, dtype=np.int64))


def _exact(values: Values) -> Values:
    """Return numbers in steps of 2^-22, whose sums are the same however they are cut, up to some thousand millions."""
    steps = values * np.float32(2**22)
    np.rint(steps, out=steps)
    steps *= np.float32(2.0**-22)
    return steps


def odds_bins(p: Values) -> Whole:
    """Return the bin of each probability, of which none is 0 or 1; those above a half are in the upper half."""
    # Scaled before anything is added: rounding must not change what is answered.
    # In one array, as each new one costs more than what is computed.
    steps = np.asarray(1 - p)
    np.divide(p, steps, out=steps)
    np.log(steps, out=steps)
    steps *= ODDS_BINS / 2 / _ODDS
    np.ceil(steps, out=steps)
    steps += ODDS_BINS // 2 - 1
    np.clip(steps, 0, ODDS_BINS - 1, out=steps)
    return steps.astype(np.int64)


def _number_bins(values: Floats) -> Whole:
    """Return the bin of each number, in ascending order of the numbers."""
    far = np.log(np.clip(np.abs(values), _LEAST, _MOST) / _LEAST) / np.log(_GROWTH)
    steps = np.minimum(np.ceil(far), _STEPS).astype(np.int64)
    return np.asarray(_STEPS + np.sign(values).astype(np.int64) * steps)


def number_of_bin(place: int) -> float:
    """Return the number for which a bin stands."""
    step = abs(place - _STEPS)
    return 0.0 if not step else float(np.sign(place - _STEPS) * _LEAST * _GROWTH ** (step - 0.5))


class WindowedTallies:
    """The tallies of groups, over a window and since checkpoint 0."""

    def __init__(self, window_s: float, clock: Callable[[], float]) -> None:
        self._part_s, self._window_s, self._clock = window_s / WINDOW_PARTS, window_s, clock
        self._parts: deque[tuple[float, dict[str, Tallies]]] = deque()
        self.total: dict[str, Tallies] = {}
        """By the name of the group."""

    def add(self, found: Mapping[str, Tallies]) -> None:
        """Add what one call has given."""
        began = self._clock() // self._part_s * self._part_s
        if not self._parts or self._parts[-1][0] != began:
            self._parts.append((began, {}))
        while self._parts[0][0] < began - self._window_s:
            self._parts.popleft()
        add_tallies(self._parts[-1][1], found)
        add_tallies(self.total, found)

    def window(self) -> dict[str, Tallies]:
        """Return the tallies of the window, which ends with what was added last."""
        found: dict[str, Tallies] = {}
        for _, part in self._parts:
            add_tallies(found, part)
        return found

    def arrays(self) -> dict[str, Floats]:
        """Return the tallies since checkpoint 0, for a checkpoint; the window belongs to this process only."""
        return {f"{group}/{name}": one.copy() for group, each in self.total.items() for name, one in each.items()}

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take back what `arrays` has returned; the window must not mix two histories."""
        self.total = tallies_in(arrays)
        self._parts.clear()


def tallies_in(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tallies]:
    """Return the tallies of groups that `arrays` of `WindowedTallies` has written."""
    found: dict[str, Tallies] = {}
    for name, one in arrays.items():
        group, _, column = name.rpartition("/")
        found.setdefault(group, {})[column] = np.array(one, np.float64)
    return found


def add_tallies(to: dict[str, Tallies], found: Mapping[str, Tallies]) -> None:
    """Add the tallies of some groups to others'."""
    for group, each in found.items():
        mine = to.setdefault(group, {})
        for name, one in each.items():
            # Another shape is that of a model with other outputs, which begins anew.
            same = name in mine and mine[name].shape == one.shape
            mine[name] = mine[name] + one if same else one
