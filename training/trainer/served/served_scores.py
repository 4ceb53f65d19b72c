"""The served score: what servers have answered, scored by the labels with which the same rows are learnt.

With `serve.log` servers write a share of their answers to a topic. The trainer reads them back. A prediction and a
learnt row belong to each other if they have one identity; whichever comes first waits for the other. Then the
prediction is scored by the row's label, under the version that has answered, and beside it the trainer's own answer to
the same row, as it was before the row was learnt: the difference is what the version that answers lacks. Every rule of
labels, of `where` and of what is learnt is applied already, as only learnt rows count; and nothing that is learnt
depends on it.

Owns the part `served`: the sums by version since checkpoint 0, what waits, and up to where the topic is read; so a kill
counts no prediction twice, and a rewind goes back. Runs on the trainer's thread. The identities come from the gate, on
the generator's thread; predictions from the reader's.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Partition
from millrace.pipelines.gates.served_gate import ServedGate
from millrace.pipelines.stream.served_reader import ServedPrediction, ServedReader
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.tallies import (
    Answered,
    WindowedTallies,
    answered,
    probabilities_of,
    score_columns,
    scored_in,
    tallies,
)
from millrace.training.telemetry.watcher import Call, Watcher
from millrace.training.trainer.served.figures import NAME, ServedFigures
from millrace.training.trainer.slices.slice_scores import records_in, scores_of

MOST_WAITING = 20_000
"""Predictions, and learnt rows, that wait for the other; the oldest wait no longer."""
MOST_VERSIONS = 10
"""Versions whose sums are held, the newest."""
_ROW_WAITS_S = 60.0
"""A prediction is in the topic before, unless the servers could not write."""
_EVERY_S, _FIGURES_S = 0.25, 5.0
_LIVE = "/live"
W = TypeVar("W", bound="ServedPrediction | _LearntRow")


class _LearntRow(NamedTuple):
    """A row that was learnt."""

    identity: int
    labels: npt.NDArray[np.float64]
    """Its label, or the number of its class."""
    answers: npt.NDArray[np.float32]
    """What the model answered before it learnt the row; probabilities, if there are such."""
    at: float
    """When, in seconds since 1970."""


class _Pair(NamedTuple):
    prediction: ServedPrediction
    row: _LearntRow


class _Waiting(Generic[W]):
    """What waits, by identity; of equal ones the first that came goes first."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, list[W]] = OrderedDict()
        self._count = 0

    def __iter__(self) -> Iterator[W]:
        return (one for some in self._held.values() for one in some)

    def add(self, one: W) -> None:
        """Have it wait; the oldest makes room."""
        self._held.setdefault(one.identity, []).append(one)
        self._count += 1
        while self._count > MOST_WAITING:
            self._drop_oldest()

    def take(self, identity: int) -> W | None:
        """Return the first with an identity, which waits no longer."""
        some = self._held.get(identity)
        if some is None:
            return None
        self._count -= 1
        one = some.pop(0)
        if not some:
            del self._held[identity]
        return one

    def drop_before(self, at: float) -> None:
        """Drop what has waited since before a time."""
        while self._held and next(iter(self._held.values()))[0].at < at:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        identity = next(iter(self._held))
        self.take(identity)


class ServedScores(Watcher):
    """The scores of the versions that have answered."""

    name = NAME

    def __init__(
        self,
        gate: ServedGate,
        reader: ServedReader,
        plan: BaselinePlan,
        window_s: float,
        clocks: tuple[Callable[[], float], Callable[[], float]],
    ) -> None:
        """`clocks` are the monotonic one, and seconds since 1970."""
        self.gates = (gate,)
        self._gate, self._reader, self._plan = gate, reader, plan
        self._clock, self._time = clocks
        self._tallies = WindowedTallies(window_s, self._clock)
        self._predictions, self._rows = _Waiting[ServedPrediction](), _Waiting[_LearntRow]()
        self._pairs: list[_Pair] = []
        self._read: dict[int, int] = {}
        """By version: how many predictions were read."""
        self._positions: dict[Partition, int] = {}
        self._columns: int | None = None
        """How many numbers the model answers with; None until it has answered."""
        self._due = 0.0
        self._figures, self._seen_at = dict[str, ServedFigures](), -math.inf

    def begin(self) -> None:
        """Read on from where the state has read to."""
        self._reader.start()

    def between_calls(self, now: float) -> None:
        """Take in the predictions that were read."""
        if now < self._due or self._columns is None:
            return
        self._due = now + _EVERY_S
        self._rows.drop_before(self._time() - _ROW_WAITS_S)
        for piece in self._reader.take():
            self._positions[piece.partition] = piece.end
            for one in piece.predictions:
                self._read[one.version] = self._read.get(one.version, 0) + 1
                if len(one.outputs) != self._columns:
                    continue
                if (row := self._rows.take(one.identity)) is None:
                    self._predictions.add(one)
                else:
                    self._pairs.append(_Pair(one, row))
        self._count()

    def called(self, call: Call) -> None:
        """Take in the rows that a call has learnt, and of which there may be predictions."""
        taken = {span.index: self._gate.take(span.partition, span.end) for span in call.facts.spans}
        for piece in scored_in(call):
            if (rows := answered([piece], self._plan)) is None:
                continue
            self._columns = rows.answers.shape[1]
            partitions, of_rows = rows.places()
            for index, pieces in taken.items():
                mine = np.flatnonzero(partitions == index)
                if not len(mine) or not any(len(one.offsets) for one in pieces):
                    continue
                offsets, identities = map(np.concatenate, zip(*pieces, strict=True))
                wanted = of_rows[mine]
                at = np.minimum(offsets.searchsorted(wanted), len(offsets) - 1)
                found = offsets[at] == wanted
                for row, identity in zip(mine[found].tolist(), identities[at[found]].tolist(), strict=True):
                    self._learnt(rows, row, identity)

    def _learnt(self, rows: Answered, row: int, identity: int) -> None:
        labels = np.asarray(rows.labels[row], np.float64).ravel()
        learnt = _LearntRow(identity, labels, rows.answers[row].copy(), self._time())
        if (prediction := self._predictions.take(identity)) is None:
            self._rows.add(learnt)
        else:
            self._pairs.append(_Pair(prediction, learnt))

    def _count(self) -> None:
        """Count the pairs, by version."""
        if not self._pairs:
            return
        pairs, self._pairs = self._pairs, []
        versions, groups = np.unique([pair.prediction.version for pair in pairs], return_inverse=True)
        labels = np.stack([pair.row.labels for pair in pairs])
        if self._plan.labels in {Labels.CLASSES, Labels.ONE_HOT}:
            labels = labels[:, 0].astype(np.int64)
        outputs = np.stack([pair.prediction.outputs for pair in pairs])
        served = probabilities_of(outputs, self._plan) if self._plan.logits else outputs
        live = np.stack([pair.row.answers for pair in pairs])
        each = np.repeat(groups, labels.size // len(labels))
        found = {}
        for end, answers in (("", served), (_LIVE, live)):
            columns = score_columns(Answered(labels, answers), self._plan.labels)
            for version, one in zip(versions.tolist(), tallies(columns, each, len(versions)), strict=True):
                found[f"{version}{end}"] = one
        self._tallies.add(found)
        for version in sorted({int(name.removesuffix(_LIVE)) for name in self._tallies.total})[:-MOST_VERSIONS]:
            for end in ("", _LIVE):
                self._tallies.total.pop(f"{version}{end}", None)
            self._read.pop(version, None)

    def figures(self) -> Mapping[str, ServedFigures]:
        """Return the versions, the newest first, as they were some seconds ago."""
        now = self._clock()
        if now - self._seen_at >= _FIGURES_S:
            self._figures, self._seen_at = self._computed(), now
        return self._figures

    def _computed(self) -> dict[str, ServedFigures]:
        self._count()
        kind, window, total = self._plan.labels, self._tallies.window(), self._tallies.total
        found = dict[str, ServedFigures]()
        for version in sorted({int(name.removesuffix(_LIVE)) for name in total} | self._read.keys(), reverse=True):
            name = str(version)
            recent = scores_of(kind, window[name]) if name in window else {}
            live = scores_of(kind, window[name + _LIVE]) if name in window else {}
            found[name] = ServedFigures(
                records=records_in(window[name]) if name in window else 0,
                values={score: at[0] for score, at in recent.items()},
                lowest={score: at[1] for score, at in recent.items() if math.isfinite(at[1])},
                highest={score: at[2] for score, at in recent.items() if math.isfinite(at[2])},
                live={score: at[0] for score, at in live.items()},
                cumulative={score: at[0] for score, at in scores_of(kind, total[name]).items()}
                if name in total
                else {},
                cumulative_records=records_in(total[name]) if name in total else 0,
                read=self._read.get(version, 0),
            )
        return dict([*found.items()][:MOST_VERSIONS])

    def snapshot(self) -> PartState:
        """Copy the sums, what waits, and up to where the topic is read."""
        self._count()
        predictions, rows = [*self._predictions], [*self._rows]
        arrays: dict[str, npt.NDArray[Any]] = {f"{_SUMS}{name}": one for name, one in self._tallies.arrays().items()}
        if predictions:
            arrays |= {
                "predictions/identities": np.array([one.identity for one in predictions], np.uint64).view(np.int64),
                "predictions/versions": np.array([one.version for one in predictions], np.int64),
                "predictions/outputs": np.stack([one.outputs for one in predictions]),
                "predictions/at": np.array([one.at for one in predictions], np.float64),
            }
        if rows:
            arrays |= {
                "rows/identities": np.array([one.identity for one in rows], np.uint64).view(np.int64),
                "rows/labels": np.stack([one.labels for one in rows]),
                "rows/answers": np.stack([one.answers for one in rows]),
                "rows/at": np.array([one.at for one in rows], np.float64),
            }
        facts = {
            "labels": str(self._plan.labels),
            "columns": self._columns,
            "read": {str(version): count for version, count in self._read.items()},
            "positions": {str(one): end for one, end in {**self._reader.begun_at, **self._positions}.items()},
        }
        return PartState(arrays=arrays, facts=facts)

    def restore(self, state: PartState) -> None:
        """Take it back, and read the topic on from there; what is of another kind of labels begins anew."""
        self._predictions, self._rows, self._pairs, self._seen_at = _Waiting(), _Waiting(), [], -math.inf
        facts, same = state.facts, state.facts.get("labels") == self._plan.labels
        arrays = state.arrays if same else {}
        self._columns = facts.get("columns") if same else None
        self._read = {int(version): int(count) for version, count in facts.get("read", {}).items()} if same else {}
        self._tallies.load({name.removeprefix(_SUMS): one for name, one in arrays.items() if name.startswith(_SUMS)})
        if "predictions/identities" in arrays:
            identities, versions, outputs, at = (arrays[f"predictions/{name}"] for name in _OF_PREDICTIONS)
            for one in zip(identities.view(np.uint64).tolist(), versions.tolist(), outputs, at.tolist(), strict=True):
                self._predictions.add(ServedPrediction(*one))
        if "rows/identities" in arrays:
            identities, labels, answers, at = (arrays[f"rows/{name}"] for name in _OF_ROWS)
            for row in zip(identities.view(np.uint64).tolist(), labels, answers, at.tolist(), strict=True):
                self._rows.add(_LearntRow(*row))
        self._positions = {Partition.parse(name): int(end) for name, end in facts.get("positions", {}).items()}
        self._reader.read_from(self._positions)


_SUMS = "sums/"
_OF_PREDICTIONS, _OF_ROWS = ("identities", "versions", "outputs", "at"), ("identities", "labels", "answers", "at")
