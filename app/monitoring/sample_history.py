"""History: the last day at falling resolution, so that the page shows the hours before it was opened.

Owns three tiers of buckets: a second for ten minutes, ten seconds for two hours, a minute for a day; some 700 kB,
whatever happens. Up to `MOST_METRICS` live metrics have tiers of their own beside them, with what guessing scores: 180
kB each. It is written on the HTTP side's loop, once a look, and read there. A bucket keeps how many values it was
given, their sum, the least and the greatest, so means and extremes stay true in the coarser ones. What is older than a
tier reaches is overwritten, and all of it ends with the process.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from app.monitoring.event_models import Extremes, Means, Stretch
from app.monitoring.observer import Observation
from app.monitoring.throughput import throughput_of
from app.monitoring.verdict import headline
from training.telemetry.live_metrics import LiveSnapshot
from training.telemetry.watched import LOSS

COLUMNS = tuple(Means.model_fields)
MOST_METRICS = 8
_METRIC_COLUMNS = ("metric", "baseline")
_COUNT, _SUM, _LEAST, _GREATEST = range(4)
_EMPTY = (0.0, 0.0, math.inf, -math.inf)
Values = Mapping[str, float | None]
Columns = TypeVar("Columns", Means, Extremes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpan:
    """How far back a tier reaches, and how finely."""

    name: str
    step_s: int
    slots: int


SPANS = (
    TierSpan(name="10m", step_s=1, slots=600),
    TierSpan(name="2h", step_s=10, slots=720),
    TierSpan(name="24h", step_s=60, slots=1440),
)


class Tier:
    """Buckets of one width, in a ring."""

    def __init__(self, span: TierSpan, columns: Sequence[str] = COLUMNS) -> None:
        self.span = span
        self._buckets = np.full(span.slots, -1, np.int64)
        self._at = np.zeros(span.slots)
        self._facts = np.tile(np.array(_EMPTY), (span.slots, len(columns), 1))

    def add(self, clock: float, at: float, values: npt.NDArray[np.float64]) -> None:
        """Add one value of each column; NaN where there is none."""
        bucket = int(clock // self.span.step_s)
        slot = bucket % self.span.slots
        if self._buckets[slot] != bucket:
            self._buckets[slot], self._at[slot], self._facts[slot] = bucket, at, _EMPTY
        known = ~np.isnan(values)
        facts = self._facts[slot]
        facts[known, _COUNT] += 1
        facts[known, _SUM] += values[known]
        facts[known, _LEAST] = np.minimum(facts[known, _LEAST], values[known])
        facts[known, _GREATEST] = np.maximum(facts[known, _GREATEST], values[known])

    def facts_of(self, slots: npt.NDArray[np.int64], buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return what is kept in these slots, where they hold these buckets."""
        same = self._buckets[slots] == buckets
        return np.where(same[:, np.newaxis, np.newaxis], self._facts[slots], _EMPTY)

    def stretch(
        self, clock: float, metric: str | None, metrics: Sequence[str] = (), other: "Tier | None" = None
    ) -> Stretch:
        """Return the buckets that the tier still reaches back to, with the metric of the other tier if there is one."""
        oldest = int(clock // self.span.step_s) - self.span.slots + 1
        there = np.flatnonzero(self._buckets >= max(oldest, 0))
        order = there[np.argsort(self._buckets[there])]
        facts = self._facts[order]
        if other is not None:
            columns = [COLUMNS.index(name) for name in _METRIC_COLUMNS]
            facts[:, columns] = other.facts_of(order, self._buckets[order])
        counts = facts[..., _COUNT]
        with np.errstate(invalid="ignore"):
            means = np.where(counts > 0, facts[..., _SUM] / counts, np.nan)
        finest = self.span.step_s == SPANS[0].step_s
        return Stretch(
            span=self.span.name,
            step_s=self.span.step_s,
            metric=metric,
            metrics=list(metrics),
            at=[round(float(at), 3) for at in self._at[order]],
            mean=_columns(means, Means),
            least=None if finest else _columns(facts[..., _LEAST], Extremes),
            greatest=None if finest else _columns(facts[..., _GREATEST], Extremes),
        )


class SampleHistory:
    """All tiers."""

    def __init__(self) -> None:
        self._tiers = {span.name: Tier(span) for span in SPANS}
        self._metrics: dict[str, dict[str, Tier]] = {}
        """The tiers of single metrics, by name and span."""
        self.metric: str | None = None
        """The name of the live metric that is shown."""
        self.latest: Values = {}
        """The newest sample."""

    def add(self, observation: Observation) -> None:
        """Add one sample to every tier."""
        snapshot = observation.snapshot
        self.metric, self.latest = sample(observation)
        values = _known([self.latest[name] for name in COLUMNS])
        for tier in self._tiers.values():
            tier.add(snapshot.clock, snapshot.at, values)
        if snapshot.posting is not None:
            self._add_metrics(snapshot.posting.live, snapshot.clock, snapshot.at)

    def stretch(self, span: str, clock: float, metric: str | None = None) -> Stretch:
        """Return what the tier of this name holds of a metric, by default of the leading one; KeyError if unknown."""
        if metric is None or metric == self.metric:
            return self._tiers[span].stretch(clock, self.metric, self.metrics)
        return self._tiers[span].stretch(clock, metric, self.metrics, self._metrics[metric][span])

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that have a history."""
        return list(self._metrics)

    def _add_metrics(self, live: LiveSnapshot, clock: float, at: float) -> None:
        # The watched one and the loss come first, so that components of an array crowd neither of them out.
        for name in (live.watch.name, LOSS, *live.values):
            if name in live.values and name not in self._metrics and len(self._metrics) < MOST_METRICS:
                self._metrics[name] = {span.name: Tier(span, _METRIC_COLUMNS) for span in SPANS}
        for name, tiers in self._metrics.items():
            values = _known([live.values.get(name), live.baseline.get(name)])
            for tier in tiers.values():
                tier.add(clock, at, values)


def _known(values: Sequence[float | None]) -> npt.NDArray[np.float64]:
    """Return the values as an array, with NaN for what is unknown or not finite."""
    known = np.array([math.nan if value is None else value for value in values])
    known[~np.isfinite(known)] = math.nan
    return known


def sample(observation: Observation) -> tuple[str | None, Values]:
    """Return the name of the live metric that is shown, and the value of each column."""
    posting, waiting = observation.snapshot.posting, throughput_of(observation).waiting
    live = None if posting is None or not posting.live.values else posting.live
    name = None if live is None else headline(live)
    values: dict[str, float | None] = {
        "metric": None if live is None or name is None else live.values.get(name),
        "baseline": None if live is None or name is None else live.baseline.get(name),
        "lag_s": observation.lag.seconds,
        "learnt_per_s": observation.snapshot.meter.records_per_s["10s"],
        "arriving_per_s": observation.arriving_lately_per_s,
    }
    busy = any(waiting.values())
    return name, {**values, **{f"waiting_{what}": share if busy else None for what, share in waiting.items()}}


def _columns(table: npt.NDArray[Any], shape: type[Columns]) -> Columns:
    columns = {name: table[:, COLUMNS.index(name)].tolist() for name in shape.model_fields}
    return shape(**{name: [shortened(value) for value in values] for name, values in columns.items()})


def shortened(value: float | None) -> float | None:
    """Round to the digits that a chart can show; return None for a value that is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
