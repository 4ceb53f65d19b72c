"""What a trial measures: records between two calls, and what limits their rate. Pure; loads no TensorFlow."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from millrace.consumers.errors import MillraceError

_SETTLING_S = 2.0
"""After the first call: queues fill, and TensorFlow's threads start."""
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
    """What the trainer's time went to, in shares; in a group, that of its chief."""
    advice: str
    workers: int = 1
    calls_too_slow: bool | None = None
    """Whether it ended before it was complete because calls took too long, and not because the topic held no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds a trainer back."""

    arriving_per_s: float | None = None
    bound_by: str | None = None
    waiting: Mapping[str, float]
    advice: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment at which a call was seen to have returned."""

    at: float
    calls: int
    learnt: int


class Interval:
    """From the return of one call to that of another; the first one after the settling time, if there is one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._settled_at: float | None = None
        self._calls_too_slow = False
        self.first = self.last = Moment(0.0, 0, 0)

    def see(self, now: float, calls: int, learnt: int) -> bool:
        """Take in how many calls have returned and what they learnt; return whether the measurement is complete."""
        if calls > self.last.calls:
            self.last = Moment(now, calls, learnt)
            if self._settled_at is None:
                self.first, self._settled_at = self.last, now + _SETTLING_S
            elif self.first.at < self._settled_at <= now:
                self.first = self.last
        if self._settled_at is None:
            return False
        settled = self.first.at >= self._settled_at
        complete = settled and self.last.at - self.first.at >= self._seconds
        self._calls_too_slow = not complete and now > self._settled_at + _PATIENCE * self._seconds
        return complete or self._calls_too_slow

    def trial(self, name: str, topics: tuple[str, ...], limits: Limits, workers: int = 1) -> Trial:
        """Return the result; MillraceError where there were too few records."""
        first, last = self.first, self.last
        if last.calls == first.calls:
            if self._calls_too_slow:
                raise MillraceError(
                    f"calls take too long to measure in {self._seconds:g} s: {last.calls} returned, with {last.learnt} "
                    "records; give more --seconds, or choose a smaller training.batch_size or training.batches_per_call"
                )
            raise MillraceError(
                f"kafka.topics: {', '.join(topics)} held {last.learnt} records, too few to measure by; write more, or "
                "choose a smaller training.batch_size or training.batches_per_call"
            )
        seconds, arriving = last.at - first.at, limits.arriving_per_s
        rate = (last.learnt - first.learnt) / seconds
        return Trial(
            name=name,
            records=last.learnt - first.learnt,
            seconds=round(seconds, 2),
            records_per_s=round(rate, 1),
            headroom=round(rate / arriving, 1) if arriving else None,
            workers=workers,
            calls_too_slow=self._calls_too_slow or None,
            **asdict(limits),
        )
