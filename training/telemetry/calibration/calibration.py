"""The calibration: whether the probabilities of the live metrics' answers come true, and how numbers miss.

Owns the part `calibration`: the tallies since checkpoint 0, a function of the records that are learnt; in a group those
of all members add up at the chief. Runs on the trainer's thread. What it counts is described in
`training/telemetry/tallies.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from millrace.consumers.records import Partition
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.calibration.figures import CalibrationBin, CalibrationFigures
from millrace.training.telemetry.calibration.worst_records import WorstRecords
from millrace.training.telemetry.label_sums import Floats, Labels
from millrace.training.telemetry.tallies import (
    ANSWERS,
    BINNED,
    CONFUSION,
    LABELS,
    PROBABILITY,
    RECORDS,
    RESIDUALS,
    TRUTH,
    ScoredRows,
    Tallies,
    WindowedTallies,
    add_tallies,
    answered,
    number_of_bin,
    scored_in,
    tallies_in,
    tallies_of_all,
    truth_columns,
)
from millrace.training.telemetry.watcher import Call, Watcher

NAME = "calibration"
_AT_ONCE = 1 << 16
"""Answers that wait until they are counted: right after a step of the model this takes four times as long, as the code
for it has to come into the processor's cache again."""
_TOGETHER = 1 << 13
"""Answers that are counted by one call of NumPy's functions: arrays of more would be mapped into memory each time."""
_BINS = 10
MOST_CLASSES = 20
_OTHER = "other"
_QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}


class Calibration(Watcher):
    """The calibration of one model."""

    name = NAME

    def __init__(self, plan: BaselinePlan, window_s: float, clock: Callable[[], float]) -> None:
        self._plan, self._tallies = plan, WindowedTallies(window_s, clock)
        self._worst = WorstRecords(plan.labels, window_s, clock)
        self._waiting: list[ScoredRows] = []
        """What is not counted yet."""
        self._answers = 0
        self._partitions: dict[int, Partition] = {}
        """Those of what waits, by their places."""

    def called(self, call: Call) -> None:
        """Take in what a call has scored."""
        for span in call.facts.spans:
            if self._partitions.setdefault(span.index, span.partition) != span.partition:
                self._count()  # another partition has this place in what waits
                self._partitions = {each.index: each.partition for each in call.facts.spans}
                break
        for piece in scored_in(call):
            self._waiting.append(piece)
            self._answers += piece.outputs.size
        if self._answers >= _AT_ONCE:
            self._count()

    def _count(self) -> None:
        """Count what waits."""
        counted: dict[str, Tallies] = {}
        some, answers = list[ScoredRows](), 0
        for number, piece in enumerate(self._waiting, 1):
            some.append(piece)
            answers += piece.outputs.size
            if answers + piece.outputs.size <= _TOGETHER and number < len(self._waiting):
                continue
            if (rows := answered(some, self._plan)) is not None:
                # Where a label has several columns, each of them is an answer.
                found = tallies_of_all(truth_columns(rows, self._plan.labels), rows.labels.size)
                add_tallies(counted, {NAME: found})
                self._worst.add(rows, self._partitions)
            some, answers = [], 0
        if counted:
            self._tallies.add(counted)
        self._waiting, self._answers, self._partitions = [], 0, {}

    def window(self) -> Tallies | None:
        """Return the tallies of the window; None before the first answer."""
        self._count()
        return self._tallies.window().get(NAME)

    def figures(self) -> CalibrationFigures | None:
        """Return how true the answers are; None before the first."""
        window = self.window()
        if window is None:
            return None
        found = figures_of(window, self._tallies.total[NAME], self._plan.labels)
        return replace(found, worst=self._worst.found() or None)

    def snapshot(self) -> PartState:
        """Copy the tallies since checkpoint 0."""
        self._count()
        return PartState(arrays=dict(self._tallies.arrays()), facts={"labels": str(self._plan.labels)})

    def restore(self, state: PartState) -> None:
        """Take the tallies back; those of labels of another kind begin anew."""
        same = state.facts.get("labels") == self._plan.labels
        # Older ones have sums of losses besides.
        known = {f"{NAME}/{name}" for name in TRUTH}
        self._tallies.load({name: one for name, one in state.arrays.items() if same and name in known})
        self._waiting, self._answers, self._partitions = [], 0, {}
        self._worst.clear()

    def share(self) -> PartState:
        """Return the tallies of the calls since this was asked last, and their worst records."""
        self._count()
        share = PartState(arrays=dict(self._tallies.arrays()), facts={"worst": self._worst.missed()})
        self.restore(PartState())
        return share

    def take_shares(self, shares: Sequence[PartState]) -> None:
        """Add what the other members have tallied."""
        for share in shares:
            if share.arrays:
                self._tallies.add(tallies_in(share.arrays))
                self._worst.add_missed((far, partition, offset) for far, partition, offset in share.facts["worst"])


def figures_of(window: Tallies, total: Tallies, kind: Labels) -> CalibrationFigures:
    """Return what tallies tell of answers to labels of this kind."""
    if kind is Labels.NUMBERS:
        return CalibrationFigures(
            answers=int(window[RECORDS][0]),
            predicted=quantiles(window[ANSWERS]),
            observed=quantiles(window[LABELS]),
            residuals=quantiles(window[RESIDUALS]),
        )
    bins = bins_of(window)
    count = sum(one.records for one in bins)
    if kind is Labels.BINARY:
        predicted = {"1": float(window[PROBABILITY].sum() / count)}
        observed = {"1": float(window[BINNED].reshape(2, -1)[1].sum() / count)}
        confusion = None
    else:
        confusion = confusion_of(window[CONFUSION])
        observed = {name: sum(row.values()) / count for name, row in confusion.items()}
        predicted = {name: sum(row[name] for row in confusion.values()) / count for name in confusion}
    return CalibrationFigures(
        answers=count,
        error=calibration_error(bins),
        cumulative_error=calibration_error(bins_of(total)),
        bins=tuple(bins),
        predicted=predicted,
        observed=observed,
        confusion=confusion,
    )


def bins_of(found: Tallies) -> list[CalibrationBin]:
    """Return bins of about as many answers each, by ascending probability; none that is empty."""
    missed, came = found[BINNED].reshape(2, -1)
    counts = missed + came
    reached = np.cumsum(counts) - counts / 2
    at = np.minimum(reached / counts.sum() * _BINS, _BINS - 1).astype(np.int64)
    records, observed, predicted = (np.bincount(at, each, _BINS) for each in (counts, came, found[PROBABILITY]))
    return [
        CalibrationBin(int(n), float(p / n), float(o / n))
        for n, p, o in zip(records, predicted, observed, strict=True)
        if n
    ]


def calibration_error(bins: list[CalibrationBin]) -> float:
    """Return the mean distance of what is predicted from what is observed, each bin by its records."""
    distances = sum(one.records * abs(one.predicted - one.observed) for one in bins)
    return distances / sum(one.records for one in bins)


def confusion_of(counts: Floats) -> Mapping[str, Mapping[str, int]]:
    """Return how many records of each class were answered with which; classes that are rare are together."""
    classes = round(len(counts) ** 0.5)
    table = counts.reshape(classes, classes)
    frequent = sorted(np.argsort(-table.sum(axis=1), kind="stable")[: MOST_CLASSES - (classes > MOST_CLASSES)].tolist())
    place = np.full(classes, len(frequent))
    place[frequent] = np.arange(len(frequent))
    names = [*map(str, frequent), *([_OTHER] if classes > MOST_CLASSES else [])]
    sums = np.zeros((len(names), len(names)), np.int64)
    np.add.at(sums, (place[:, None], place[None, :]), table.astype(np.int64))
    return {name: dict(zip(names, row, strict=True)) for name, row in zip(names, sums.tolist(), strict=True)}


def quantiles(counts: Floats) -> Mapping[str, float]:
    """Return quantiles of numbers that are counted in bins."""
    reached = np.cumsum(counts)
    return {
        name: number_of_bin(int(np.searchsorted(reached, share * reached[-1]))) for name, share in _QUANTILES.items()
    }
