"""A trial of a user's model on the user's records, on this machine: the rate, and what limits it.

Runs the service as `run` does, on threads of its own, from the earliest record that Kafka has; the caller waits. It
leaves no trace: checkpoints go to a temporary folder, no offset is committed, no dead letter is sent. It ends after the
given time, or with the last record that was there when it began.
"""

import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.monitoring.observer import LOOK_EVERY_S, Observation, Observer
from app.monitoring.snapshot import take
from app.monitoring.throughput import throughput_of
from app.service.service import RunOptions, Service
from app.settings import Loaded, Settings
from app.settings.sections.scale import ScaleSettings
from consumers.errors import MillraceError
from consumers.kafka.positions import Now
from training.telemetry.meter import Meterings

_SETTLING_S = 2.0
"""After the first call: queues fill, and TensorFlow's threads start."""
_POLL_S = 0.05
_PATIENCE = 4
"""How many times as long as wanted it may take, where calls are slow to return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of a trial."""

    name: str
    records: int
    """Learnt in the time that was measured."""
    seconds: float
    records_per_s: float
    arriving_per_s: float | None
    """Written to the topic meanwhile; None where that is not known."""
    headroom: float | None
    """How many times as many could arrive; None where none do."""
    bound_by: str | None
    waiting: Mapping[str, float]
    """What the trainer's time went to, in shares."""
    advice: str


@dataclass(frozen=True, slots=True)
class _Mark:
    """A moment at which a call was seen to have returned."""

    at: float
    calls: int
    learnt: int


class _Interval:
    """From the return of one call to that of another; the first one after the settling time, if there is one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._settled_at: float | None = None
        self.first = self.last = _Mark(0.0, 0, 0)

    def see(self, metered: Meterings, now: float) -> bool:
        """Take in the trainer's meter; return whether the measurement is complete."""
        if metered.calls > self.last.calls:
            self.last = _Mark(now, metered.calls, metered.learnt)
            if self._settled_at is None:
                self.first, self._settled_at = self.last, now + _SETTLING_S
            elif self.first.at < self._settled_at <= now:
                self.first = self.last
        if self._settled_at is None:
            return False
        settled = self.first.at >= self._settled_at
        complete = settled and self.last.at - self.first.at >= self._seconds
        return complete or now > self._settled_at + _PATIENCE * self._seconds


def bench(loaded: Loaded, seconds: float) -> Trial:
    """Run the trial. Raises what a start would raise, and MillraceError where there are too few records."""
    ended, span = threading.Event(), _Interval(seconds)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        apart = Loaded(set_apart(loaded.settings, Path(folder)), loaded.origins)
        service = Service(apart, RunOptions(until=Now(), commits=False), on_end=ended.set)
        service.start()
        try:
            observation = _watch(service, ended, span)
        finally:
            service.stop()
            service.join(service.grace_left_s())
    if service.error is not None:
        raise service.error
    if span.last.calls == span.first.calls:
        topics = ", ".join(loaded.settings.kafka.topics)
        raise MillraceError(
            f"kafka.topics: {topics} held {span.last.learnt} records, too few to measure by; write more, or choose a "
            "smaller training.batch_size or training.batches_per_call"
        )
    return _trial(observation, span.first, span.last)


def set_apart(settings: Settings, folder: Path) -> Settings:
    """Return the settings changed so that nothing is touched that others see."""
    changes = {
        "kafka": {"group": f"millrace-bench-{settings.name}", "start": "earliest", "out_of_range": "earliest"},
        "checkpoints": {"path": folder},
    }
    parts = {name: getattr(settings, name).model_copy(update=update) for name, update in changes.items()}
    letters = settings.records.dead_letters.model_copy(update={"topic": None})
    parts["records"] = settings.records.model_copy(update={"dead_letters": letters})
    return settings.model_copy(update={**parts, "scale": ScaleSettings()})


def _watch(service: Service, ended: threading.Event, span: _Interval) -> Observation:
    """Watch until the service ends or the measurement is complete; return the last observation."""
    observer = Observer(partial(take, service))
    looked_at = float("-inf")
    while not ended.wait(_POLL_S) and not span.see(service.meter.snapshot(), now := time.monotonic()):
        if now - looked_at >= LOOK_EVERY_S:
            observer.look()
            looked_at = now
    span.see(service.meter.snapshot(), time.monotonic())
    return observer.look()


def _trial(observation: Observation, first: _Mark, last: _Mark) -> Trial:
    throughput = throughput_of(observation)
    seconds = last.at - first.at
    rate = (last.learnt - first.learnt) / seconds
    arriving = throughput.arriving_per_s
    return Trial(
        name=observation.snapshot.name,
        records=last.learnt - first.learnt,
        seconds=round(seconds, 2),
        records_per_s=round(rate, 1),
        arriving_per_s=arriving,
        headroom=round(rate / arriving, 1) if arriving else None,
        bound_by=throughput.bound_by,
        waiting=throughput.waiting,
        advice=throughput.advice,
    )
