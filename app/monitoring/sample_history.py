"""History: the last day at falling resolution, so that the page shows the hours before it was opened.

Owns three tiers of buckets: a second for ten minutes, ten seconds for two hours, a minute for a day; some 700 kB,
whatever happens. Up to `MOST_METRICS` live metrics have tiers of their own beside them, with what guessing scores: 180
kB each. A bucket keeps how many values it was given, their sum, the least and the greatest, so means and extremes stay
true in the coarser ones. What is older than a tier reaches is overwritten.

It is written on the HTTP side's loop, once a look, and read there. The thread that keeps it on disk copies it, and adds
what an earlier process has kept; a lock is held meanwhile, for about a millisecond at a time.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from millrace.app.monitoring.models import Extremes, LastValue, Means, Stretch
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.throughput import kafka_is_away, throughput_of
from millrace.app.monitoring.verdict import headline
from millrace.app.service.kept_history import KeptTables
from millrace.training.telemetry.live_metrics import LOSS, LiveSnapshot
from millrace.training.telemetry.phases import Phase

COLUMNS = tuple(Means.model_fields)
MOST_METRICS = 8
_METRIC_COLUMNS = ("metric", "baseline")
_HELD_AFTER_S = 5.0
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

    def tables(self) -> KeptTables:
        """Return a copy of the buckets that hold anything, the oldest first: numbers, times and facts."""
        there = np.flatnonzero(self._buckets >= 0)
        order = there[np.argsort(self._buckets[there])]
        return {
            "buckets": self._buckets[order],
            "at": self._at[order],
            "facts": self._facts[order].astype(np.float32),
        }

    def merge(self, tables: KeptTables, newest: int) -> None:
        """Add buckets up to the number `newest` to those that are here; ValueError if they are no such tables."""
        buckets, at, facts = tables["buckets"].astype(np.int64), tables["at"], tables["facts"].astype(np.float64)
        if facts.shape != (len(buckets), *self._facts.shape[1:]) or at.shape != buckets.shape:
            raise ValueError(f"tables of the shapes {facts.shape} and {at.shape} for {len(buckets)} buckets")
        wanted = (buckets > newest - self.span.slots) & (buckets <= newest) & (buckets >= 0)
        buckets, at, facts = buckets[wanted], at[wanted], facts[wanted]
        slots = buckets % self.span.slots  # of as many buckets in a row as there are slots: each has its own
        same, newer = self._buckets[slots] == buckets, self._buckets[slots] < buckets
        both = np.stack([self._facts[slots[same]], facts[same]])
        self._facts[slots[same], :, : _SUM + 1] = both[..., : _SUM + 1].sum(axis=0)
        self._facts[slots[same], :, _LEAST] = both[..., _LEAST].min(axis=0)
        self._facts[slots[same], :, _GREATEST] = both[..., _GREATEST].max(axis=0)
        self._at[slots[same]] = at[same]
        self._buckets[slots[newer]], self._at[slots[newer]] = buckets[newer], at[newer]
        self._facts[slots[newer]] = facts[newer]

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
        self._lock = threading.Lock()
        self._tiers = {span.name: Tier(span) for span in SPANS}
        self._metrics: dict[str, dict[str, Tier]] = {}
        """The tiers of single metrics, by name and span."""
        self._ahead_s: float | None = None
        """What the wall clock was ahead of the monotonic one at the first sample: buckets are numbered by both, so that
        they grow evenly and those of an earlier process fit."""
        self.metric: str | None = None
        """The name of the live metric that is shown."""
        self.latest: Values = {}
        """The newest sample."""
        self.last: dict[str, LastValue] = {}
        """The last value of each metric, also while nothing is scored."""

    def add(self, observation: Observation) -> None:
        """Add one sample to every tier."""
        snapshot = observation.snapshot
        name, self.latest = sample(observation)
        values = _known([self.latest[column] for column in COLUMNS])
        with self._lock:
            self.metric = name or self.metric
            if self._ahead_s is None:
                self._ahead_s = snapshot.at - snapshot.clock
            for tier in self._tiers.values():
                tier.add(snapshot.clock + self._ahead_s, snapshot.at, values)
            if (live := _shown(observation)) is not None:
                self._add_metrics(live, snapshot.clock + self._ahead_s, snapshot.at)

    def stretch(self, span: str, clock: float, metric: str | None = None) -> Stretch:
        """Return what the tier of this name holds of a metric, by default of the leading one; KeyError if unknown."""
        with self._lock:
            shown, clock = metric or self.metric, clock + (self._ahead_s or 0.0)
            other = self._metrics[metric] if metric else self._metrics.get(self.metric or "")
            stretch = self._tiers[span].stretch(clock, shown, self.metrics, None if other is None else other[span])
        return stretch.model_copy(update={"last": self.last.get(shown or "")})

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that have a history."""
        return list(self._metrics)

    def copied(self) -> tuple[dict[str, KeptTables], dict[str, Any]]:
        """Return all tables by name, and the facts beside them, as JSON has them; on any thread."""
        with self._lock:
            tiers = {f"tier.{name}": tier for name, tier in self._tiers.items()}
            for index, of_metric in enumerate(self._metrics.values()):
                tiers |= {f"metric{index}.{name}": tier for name, tier in of_metric.items()}
            last = {name: value.model_dump() for name, value in self.last.items()}
            facts = {"columns": list(COLUMNS), "metric": self.metric, "metrics": self.metrics, "last": last}
        tables = dict[str, KeptTables]()
        for name, tier in tiers.items():
            with self._lock:  # for one tier at a time, as the loop waits meanwhile
                tables[name] = tier.tables()
        return tables, facts

    def merge(self, tables: Mapping[str, KeptTables], facts: Mapping[str, Any], at: float) -> None:
        """Add what an earlier process has copied, up to the time `at`; on any thread.

        Raise ValueError or KeyError if it does not fit; then nothing is added.
        """
        if facts["columns"] != list(COLUMNS):
            raise ValueError(f"columns {facts['columns']}")
        merged = {name: LastValue.model_validate(value) for name, value in facts["last"].items()}
        newest = {span.name: int(at // span.step_s) for span in SPANS}
        kept = {span.name: Tier(span) for span in SPANS}
        of_metrics = {name: {span.name: Tier(span, _METRIC_COLUMNS) for span in SPANS} for name in facts["metrics"]}
        for span, tier in kept.items():
            tier.merge(tables[f"tier.{span}"], newest[span])
        for index, tiers in enumerate(of_metrics.values()):
            for span, tier in tiers.items():
                tier.merge(tables[f"metric{index}.{span}"], newest[span])
        with self._lock:
            pairs = [(tier, kept[span]) for span, tier in self._tiers.items()]
            for name, tiers in of_metrics.items():
                here = self._metrics.get(name)
                if here is None and len(self._metrics) < MOST_METRICS:
                    self._metrics[name] = tiers
                elif here is not None:
                    pairs += [(tier, tiers[span]) for span, tier in here.items()]
            self.metric = self.metric or facts["metric"]
            self.last = merged | self.last
        for tier, earlier in pairs:
            copy = earlier.tables()
            with self._lock:  # for one tier at a time, as the loop waits meanwhile
                tier.merge(copy, newest[tier.span.name])

    def _add_metrics(self, live: LiveSnapshot, clock: float, at: float) -> None:
        # The watched one and the loss come first, so that components of an array crowd neither of them out.
        for name in (live.watch.name, LOSS, *live.values):
            if name not in live.values or name in self._metrics:
                continue
            # A model that was changed has other metrics than those that an earlier process has kept.
            gone = next((one for one in self._metrics if one not in live.values), None)
            if len(self._metrics) >= MOST_METRICS and gone is not None:
                del self._metrics[gone]
                self.last.pop(gone, None)
            if len(self._metrics) < MOST_METRICS:
                self._metrics[name] = {span.name: Tier(span, _METRIC_COLUMNS) for span in SPANS}
        for name, tiers in self._metrics.items():
            values = _known([live.values.get(name), live.baseline.get(name)])
            for tier in tiers.values():
                tier.add(clock, at, values)
            if not math.isnan(values[0]):
                baseline = None if math.isnan(values[1]) else float(values[1])
                scored_at = round(at - (live.age_s or 0.0), 3)
                self.last[name] = LastValue(value=float(values[0]), baseline=baseline, at=scored_at)


def _known(values: Sequence[float | None]) -> npt.NDArray[np.float64]:
    """Return the values as an array, with NaN for what is unknown or not finite."""
    known = np.array([math.nan if value is None else value for value in values])
    known[~np.isfinite(known)] = math.nan
    return known


def _shown(observation: Observation) -> LiveSnapshot | None:
    """Return the live metrics, unless nothing was scored for a while: their line ends there, and does not go on."""
    snapshot = observation.snapshot
    live = None if snapshot.posting is None or not snapshot.posting.live.values else snapshot.posting.live
    if live is None or live.age_s is None:
        return live
    rests = snapshot.phase.phase is Phase.PAUSED or kafka_is_away(observation)
    return None if live.age_s > (_HELD_AFTER_S if rests else live.window_s) else live


def sample(observation: Observation) -> tuple[str | None, Values]:
    """Return the name of the live metric that is shown, and the value of each column."""
    live, waiting = _shown(observation), throughput_of(observation).waiting
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
