"""The guess that nothing changes: what saying of each record the label of the record before it would score.

Where labels come in runs, as of sensors or in sorted streams, this beats the base rate and many a model. "Before" is by
offset within a partition, among the records that were learnt: neither a shuffle nor the order of partitions matters,
but for which of many values are taken. In a group, whose members hold partitions in turn, there is no such guess.

Owns the last label of each partition: the part `no_change`. Runs on the trainer's thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Partition
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.label_sums import MOST_VALUES, ElementLoss, Floats

NAME = "no_change"
NO_CHANGE = "no change"
"""What the guess is called beside its score."""
MOST_WIDTH = 4096
"""Numbers of one label; of a wider one, such as an image that is learnt from itself, the last is not kept."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """How a metric scores labels that are repeated."""

    terms: Callable[[Floats, Floats], Floats]
    """Takes labels [n, columns] and those before them; returns what each row adds to the sums, [n, width]."""
    score: Callable[[Floats], float] = lambda means: float(means[0])
    """Returns the score by the means of the terms."""
    width: int = 1


@dataclass(frozen=True, slots=True)
class RepeatedScore:
    """How a score of the model is guessed by repeating labels."""

    name: str
    repeat: Repeat
    weighted: bool = False
    """Whether the metric honours the records' weights."""
    per_row: bool = False
    """Whether the metric divides by rows, as Keras' losses do, and not by their weights."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Labels [n, columns] of records, and of the records before them."""

    labels: Floats
    before: Floats
    weights: Floats

    def sums(self, scores: Sequence[RepeatedScore]) -> Floats:
        """Return one array, which may be added to others: the rows, their weight, and the terms of each score."""
        terms = []
        for score in scores:
            of_rows = score.repeat.terms(self.labels, self.before)
            # Not by `@`: so many rows wake the threads of BLAS, which then spin until the next call, for good.
            terms.append(np.einsum("i,ij->j", self.weights, of_rows) if score.weighted else of_rows.sum(axis=0))
        return np.concatenate([[len(self.labels), self.weights.sum()], *terms])


def repeated(scores: Sequence[RepeatedScore], sums: Floats) -> dict[str, float]:
    """Return what repeating the labels scores by these sums, by name; without what is not finite."""
    if len(sums) != 2 + sum(score.repeat.width for score in scores) or sums[1] <= 0:
        return {}
    (rows, weight), at, found = sums[:2], 2, dict[str, float]()
    for score in scores:
        means = sums[at : at + score.repeat.width] / (weight if score.weighted else rows)
        found[score.name] = score.repeat.score(means) * (weight / rows if score.per_row else 1.0)
        at += score.repeat.width
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}


@dataclass(slots=True)
class LastLabels:
    """The part `no_change`: the label of the last record of each partition that was learnt."""

    name: str = NAME
    _last: dict[Partition, Floats] = field(default_factory=dict)

    def follow(
        self,
        labels: npt.NDArray[Any],
        weights: npt.NDArray[Any],
        partitions: Mapping[int, Partition],
        places: npt.NDArray[Any],
        offsets: npt.NDArray[Any],
    ) -> Pairs | None:
        """Pair the rows of a call with the rows before them, and keep the last ones; None where there is no pair.

        `partitions` has the rows' partitions by their `places` in the incarnation's table.
        """
        if not labels.size or labels[0].size > MOST_WIDTH:
            return None
        labels = labels.reshape(len(labels), -1)
        # Of a model whose labels had another shape before.
        self._last = {partition: last for partition, last in self._last.items() if last.shape == labels.shape[1:]}
        firsts, order = _runs(places, offsets), None
        if firsts is None:  # as after a shuffle
            # By place, then by offset: one key sorts many times as fast as two.
            order = np.argsort(places.astype(np.int64) * (np.ptp(offsets) + 1) + (offsets - offsets.min()))
            places = places[order]
            firsts = np.flatnonzero(np.diff(places, prepend=-1)).tolist()
        # Of many values an even selection is taken, as in the sums over labels.
        step, unpaired = -(-labels.size // MOST_VALUES), list[int]()
        at = np.arange(0, len(places), step)
        here, behind = (at, at - 1) if order is None else (order[at], order[at - 1])
        before = labels[behind].astype(np.float64)
        for first, after in zip(firsts, [*firsts[1:], len(places)], strict=True):
            partition, newest = partitions[places[first]], after - 1 if order is None else order[after - 1]
            if first % step == 0 and (last := self._last.get(partition)) is not None:
                before[first // step] = last
            elif first % step == 0:
                unpaired.append(first // step)
            self._last[partition] = labels[newest].astype(np.float64)
        if unpaired:
            here, before = np.delete(here, unpaired), np.delete(before, unpaired, axis=0)
        if not len(here):
            return None
        return Pairs(labels[here].astype(np.float64), before, weights[here].astype(np.float64))

    def forget(self, partition: Partition) -> None:
        """Forget a partition whose topic was created again."""
        self._last.pop(partition, None)

    def snapshot(self) -> PartState:
        """Copy the labels; none in an array where none is known."""
        known = sorted(self._last)
        arrays = {"labels": np.stack([self._last[partition] for partition in known])} if known else {}
        return PartState(arrays=arrays, facts={"partitions": [str(partition) for partition in known]})

    def restore(self, state: PartState) -> None:
        """Take the labels back; a checkpoint from before they were kept holds none."""
        known = map(Partition.parse, state.facts.get("partitions", ()))
        self._last = {partition: state.arrays["labels"][at] for at, partition in enumerate(known)}


def _runs(places: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> list[int] | None:
    """Return where runs of rows of one partition begin; None where those of a partition are not in order, or many."""
    steps = np.flatnonzero(places[1:] != places[:-1])
    if len(steps) > len(places) // 8:  # they are followed one by one below
        return None
    rises = offsets[1:] > offsets[:-1]
    rises[steps] = True
    firsts, reached = [0, *(steps + 1).tolist()], dict[int, int]()
    for first, after in zip(firsts, [*firsts[1:], len(places)], strict=True):
        place = int(places[first])
        if reached.get(place, -1) >= offsets[first]:
            return None
        reached[place] = int(offsets[after - 1])
    return firsts if rises.all() else None


# What repeating scores, by metric


def mean_of(loss: ElementLoss) -> Repeat:
    """Return how a loss by element is scored: its mean over columns and rows."""
    return Repeat(lambda labels, before: _mean_of_columns(loss(labels, before)))


def root_of(loss: ElementLoss) -> Repeat:
    """Return how the root of such a mean is scored."""
    return Repeat(mean_of(loss).terms, lambda means: float(np.sqrt(means[0])))


def same(labels: Floats, before: Floats) -> Floats:
    """Return 1 where a label is that of before."""
    return np.asarray(labels == before, np.float64)


def squared(labels: Floats, before: Floats) -> Floats:
    """Return the squared change."""
    return np.asarray(np.square(labels - before))


def absolute(labels: Floats, before: Floats) -> Floats:
    """Return the absolute change."""
    return np.abs(labels - before)


ONE_HOT_ACCURACY = Repeat(lambda labels, before: same(labels.argmax(axis=1), before.argmax(axis=1)).reshape(-1, 1))


def _stay_entropy(means: Floats) -> float:
    both = np.array([means[0], 1 - means[0]])
    return float(-(both * np.log(np.where(both > 0, both, 1.0))).sum())


STAY_RATE_LOG_LOSS = Repeat(mean_of(same).terms, _stay_entropy)
"""The log loss of giving the label of before the share of labels that stay: certainty would cost infinitely much."""


def _mean_of_columns(values: npt.NDArray[Any]) -> Floats:
    # Most labels have one column, of which NumPy takes the mean row by row.
    return np.asarray(values if values.shape[1] == 1 else values.mean(axis=1, keepdims=True), np.float64)


_CONFUSED = np.array([3, 1, 0, 2], np.int8)[:, np.newaxis]
"""True and false positives, true and false negatives: twice whether it is one, and whether it was said."""


def _confusion(labels: Floats, before: Floats) -> Floats:
    """Return these four, as shares of the columns."""
    which = (labels > 0.5) * np.int8(2) + (before > 0.5)
    # Each of the four contiguous, to be summed up fast.
    if which.shape[1] == 1:
        return np.asarray(which[:, 0] == _CONFUSED, np.float64).T
    return np.asarray((which == _CONFUSED[..., np.newaxis]).mean(axis=2)).T


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest else float("nan")


PRECISION = Repeat(_confusion, lambda means: _share(means[0], means[1]), width=4)
RECALL = Repeat(_confusion, lambda means: _share(means[0], means[3]), width=4)
ROC_AUC = Repeat(_confusion, lambda means: (_share(means[0], means[3]) + _share(means[2], means[1])) / 2, width=4)
"""The curve of a guess of 0 and 1 has one corner."""
