"""The live metrics: the scores on records that the model had not learnt yet, over a window and since checkpoint 0.

Sums are float64 and int64, in buckets of a sixtieth of the window, at least a second. The states of the compiled
metrics are added up bucket by bucket; `look` turns them into values, beside what guessing would have scored.

`choose_watched` decides once, at the start, by which metric the model is judged in the verdict, the alerts and the list
of checkpoints, so that two checkpoints of a run can be compared. The loss is one of the names.

Owns the buckets and the part `metrics`, and holds the part `no_change`. `add` and `look` run on the trainer's thread;
`look` returns a frozen snapshot, which other threads read.
"""

import difflib
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import ConfigError
from millrace.consumers.metric import PartFigures, gauge
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Floats, LabelSums, no_labels, padded_sum
from millrace.training.telemetry.no_change import LastLabels, repeated

LOSS = "loss"
Better = Literal["higher", "lower"]
_WATCH = "training.live_metrics.watch"
_BETTER = "training.live_metrics.better"


@dataclass(frozen=True, slots=True)
class Watched:
    """The name of the watched metric, and which of its values are better."""

    name: str
    higher_is_better: bool

    def better(self, value: float, than: float) -> bool:
        """Return whether `value` is better than the other; a value that is not finite is worse than any that is."""
        if not math.isfinite(value) or not math.isfinite(than):
            return math.isfinite(value) and not math.isfinite(than)
        return value > than if self.higher_is_better else value < than


WATCHED_LOSS = Watched(LOSS, higher_is_better=False)


def choose_watched(
    directions: Mapping[str, bool | None],
    watch: str | None = None,
    better: Better | None = None,
    *,
    first: Sequence[str] = (),
) -> Watched:
    """Return the watched metric; raise ConfigError where the settings do not name one that can be compared.

    `directions` says by name whether higher is better, None where that is not known. Without `watch`, the names in
    `first` are preferred in their order, then the first metric whose direction is known, then the loss.
    """
    known = {LOSS: False} | dict(directions)
    if watch is None:
        comparable = [name for name in directions if name != LOSS and directions[name] is not None]
        name = next((name for name in first if name in comparable), next(iter(comparable), LOSS))
        return Watched(name, higher_is_better=bool(known[name]))
    if watch not in known:
        near = difflib.get_close_matches(watch, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{_WATCH}: the model compiles no metric {watch!r}, but {', '.join(known)}{hint}")
    direction = known[watch] if better is None else better == "higher"
    if direction is None:
        raise ConfigError(
            f"{_BETTER}: {watch} is a metric of your own, and nothing says whether more of it is better; write "
            "higher or lower"
        )
    return Watched(watch, higher_is_better=direction)


_BUCKETS = 60
"""The number of buckets of a window: adding them up is work on the trainer's thread, once a second."""
State = npt.NDArray[np.float64]
Results = Callable[[Sequence[State]], dict[str, float]]


@dataclass(slots=True)
class Sums:
    """Sums over a part of the stream."""

    records: int = 0
    loss: float = 0.0
    """The sum of the records' losses; divided by `scored` it is their mean."""
    scored: int = 0
    """Records whose loss is in the sum."""
    states: list[State] = field(default_factory=list)
    labels: LabelSums = field(default_factory=LabelSums)
    weighted_labels: LabelSums = field(default_factory=LabelSums)
    """The same labels, each times its record's weight. The same object where all weights are 1, to be added up once."""
    repeats: Floats = field(default_factory=no_labels)
    """What the guess that nothing changes scored (`training.telemetry.no_change`)."""

    @property
    def unweighted(self) -> bool:
        """Whether all weights so far are 1."""
        return self.weighted_labels is self.labels or not (self.labels.rows or self.weighted_labels.rows)

    def add(self, *others: "Sums") -> None:
        """Add the sums of other parts."""
        for other in others:
            self.records += other.records
            self.loss += other.loss
            self.scored += other.scored
            self.repeats = padded_sum(self.repeats, other.repeats)
            if [state.shape for state in self.states] != [state.shape for state in other.states]:
                # The first sums, or the metrics are compiled differently than before.
                self.states = [np.array(state) for state in other.states]
            else:
                for total, state in zip(self.states, other.states, strict=True):
                    np.add(total, state, out=total)
        if self.unweighted and all(other.unweighted for other in others):
            self.weighted_labels = self.labels
        else:
            if self.weighted_labels is self.labels:
                self.weighted_labels = replace(self.labels)
            self.weighted_labels.add(*(other.weighted_labels for other in others))
        self.labels.add(*(other.labels for other in others))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSnapshot(PartFigures):
    """The live metrics at one time."""

    section: ClassVar = "Live metrics"

    scored: str
    """`before_update`: by the training pass; `inference_pass`: by a second pass. Both score before the update."""
    window_s: Annotated[float, gauge("live_window_seconds", "")]
    """How far back the window reaches from the newest record that was scored."""
    records: Annotated[int, gauge("live_records", "")]
    """Records scored in the window; with few of them the values say little."""
    # The loss and every compiled metric; none without records.
    values: Annotated[
        Mapping[str, float],
        gauge("live_value", "Bad: worse than millrace_live_baseline, as the model then knows nothing.", "metric"),
    ]
    """The model's score over the window on records that it had not learnt yet, by compiled metric."""
    # Without those that have no guess.
    baseline: Annotated[Mapping[str, float], gauge("live_baseline", "", "metric")]
    """The score of guessing over the window: the base rate, the mean or the median of the labels, whichever the metric
    rewards; weighted as the metric is."""
    guesses: Mapping[str, str]
    """What each guess is, in words."""
    # Without the metrics that have no such guess; empty in a group.
    no_change: Annotated[
        Mapping[str, float],
        gauge("live_no_change", "Bad: better than millrace_live_value, as repeating labels beats the model.", "metric"),
    ]
    """The score over the window of guessing that nothing changes: the label of the record before, in its partition."""
    cumulative: Annotated[
        Mapping[str, float],
        gauge(
            "live_cumulative_value",
            "Bad: better than millrace_live_value for long, as the model was better before.",
            "metric",
        ),
    ]
    """The model's score since checkpoint number 0; a rewind goes back."""
    cumulative_records: Annotated[int, gauge("live_cumulative_records", "")]
    """Records scored since checkpoint number 0; a rewind goes back."""
    watch: Watched = WATCHED_LOSS
    """The metric by which the model is judged."""
    # None if none was since the start or the last rewind.
    age_s: Annotated[float | None, gauge("live_age_seconds", "Bad: it grows while records are written.")] = None
    """How long ago the newest record was scored; while none is, the live values stand still."""

    def no_change_is_better(self, name: str) -> bool:
        """Return whether no change is the better guess of this metric, the watched one or the loss."""
        guess, again = self.baseline.get(name), self.no_change.get(name)
        watched = self.watch if name == self.watch.name else WATCHED_LOSS
        return guess is not None and again is not None and watched.better(again, guess)

    @property
    def ahead_of_guessing(self) -> float | None:
        """By how much the watched metric is better than the better guess; None without a value, or without a guess."""
        guesses = self.no_change if self.no_change_is_better(self.watch.name) else self.baseline
        value, guess = self.values.get(self.watch.name), guesses.get(self.watch.name)
        if value is None or guess is None or not math.isfinite(value):
            return None
        return value - guess if self.watch.higher_is_better else guess - value

    @property
    def watched_value(self) -> Annotated[Mapping[str, float], gauge("live_watched_value", "", "metric")]:
        """The score in the metric by which the model is judged."""
        return {name: value for name, value in self.values.items() if name == self.watch.name}

    @property
    def watched_baseline(self) -> Annotated[Mapping[str, float], gauge("live_watched_baseline", "", "metric")]:
        """The score of guessing in that metric."""
        return {name: value for name, value in self.baseline.items() if name == self.watch.name}

    @property
    def watched_ahead(
        self,
    ) -> Annotated[Mapping[str, float], gauge("live_watched_ahead", "Bad: less than 0.", "metric")]:
        """The lead of the watched metric over guessing, by the base rate or by no change, whichever scores better."""
        return {} if self.ahead_of_guessing is None else {self.watch.name: self.ahead_of_guessing}


class LiveMetrics:
    """Windowed and cumulative sums of the calls' results."""

    name = "metrics"

    def __init__(
        self,
        *,
        window_s: float,
        scored: str,
        results: Results,
        plan: BaselinePlan,
        clock: Callable[[], float],
        names: Sequence[str] = (),
        watch: Watched = WATCHED_LOSS,
    ) -> None:
        self._window_s = window_s
        self._scored = scored
        self._results = results
        self.plan = plan
        self._clock = clock
        self._names = list(names)
        self._watch = watch
        self._bucket_s = max(1.0, window_s / _BUCKETS)
        self._buckets: deque[tuple[float, Sums]] = deque()
        self._total = Sums()
        self.last_labels = LastLabels()
        """A part of its own, followed by the trainer if any of the plan's scores is guessed by it."""
        self._scored_at: float | None = None
        """When a record was last scored: the window ends there, so that without records its values stand still."""
        self._closed_at: tuple[float, ...] = ()
        self._closed = Sums()
        """The sum of the window's buckets but the newest, which began at these times."""

    def add(self, sums: Sums) -> None:
        """Add what one call scored."""
        self._scored_at = self._clock()
        began = self._scored_at // self._bucket_s * self._bucket_s
        if not self._buckets or self._buckets[-1][0] != began:
            self._buckets.append((began, Sums()))
        self._buckets[-1][1].add(sums)
        self._total.add(sums)
        while self._buckets[0][0] < began - self._window_s:
            self._buckets.popleft()

    def look(self) -> LiveSnapshot:
        """Compute the values over the window and since checkpoint 0."""
        now = self._clock()
        end = now if self._scored_at is None else self._scored_at
        window = self._window(end - self._window_s)
        return LiveSnapshot(
            scored=self._scored,
            window_s=self._window_s,
            records=window.records,
            values=self._values(window),
            baseline=self.plan.guessed(window.labels, window.weighted_labels),
            guesses=self.plan.kinds,
            no_change=repeated(self.plan.repeats, window.repeats),
            cumulative=self._values(self._total),
            cumulative_records=self._total.records,
            watch=self._watch,
            age_s=None if self._scored_at is None else max(0.0, now - self._scored_at),
        )

    def _window(self, oldest: float) -> Sums:
        """Add up the buckets that began at `oldest` or later."""
        within = [(began, sums) for began, sums in self._buckets if began >= oldest]
        closed = tuple(began for began, _ in within[:-1])
        if closed != self._closed_at:
            # Only the newest bucket changes between two looks; adding up all of them takes 20 ms for 16 labels.
            self._closed_at, self._closed = closed, Sums()
            self._closed.add(*(sums for _, sums in within[:-1]))
        window = Sums()
        window.add(self._closed, *(sums for _, sums in within[-1:]))
        return window

    def _values(self, sums: Sums) -> dict[str, float]:
        if not sums.records:
            return {}
        values = {"loss": sums.loss / sums.scored} if sums.scored else {}
        return {**values, **self._results(sums.states)}

    def snapshot(self) -> PartState:
        """Copy the cumulative sums for a checkpoint; the window belongs to this process only."""
        total = self._total
        arrays: dict[str, npt.NDArray[Any]] = {f"state.{i}": s.copy() for i, s in enumerate(total.states)}
        arrays.update(total.labels.arrays("labels"))
        arrays.update(total.weighted_labels.arrays("weighted_labels"))
        facts = {"records": total.records, "loss": total.loss, "scored": total.scored, "labels": total.labels.rows}
        return PartState(arrays=arrays, facts={**facts, "names": self._names})

    def restore(self, state: PartState) -> None:
        """Take the cumulative sums back; metrics that are compiled differently now begin at zero."""
        arrays = state.arrays
        facts = state.facts
        # By name, because another metric may have states of the same shape.
        same = facts.get("names", self._names) == self._names
        states = [arrays[f"state.{i}"] for i in range(sum(key.startswith("state.") for key in arrays)) if same]
        # A checkpoint of an earlier version has neither weights nor sums over weighted labels.
        labels = LabelSums.of(arrays, "labels", int(facts["labels"]))
        weighted = LabelSums.of(arrays, "weighted_labels")
        weighted = labels if weighted.equals(labels) else weighted
        self._total = Sums(int(facts["records"]), float(facts["loss"]), int(facts["scored"]), states, labels, weighted)
        # The window must not mix two histories.
        self._buckets.clear()
        self._scored_at = None
        self._closed_at, self._closed = (), Sums()
