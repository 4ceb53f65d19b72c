"""What was read from a service so far: its last answer, how long it has been silent, and some past values. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT = 120


@dataclass(slots=True, kw_only=True)
class StatusReadings:
    """The readings of one service."""

    status: Mapping[str, Any]
    silent_s: float = 0.0
    """Since when it has not answered."""
    metric: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    lag: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    rate: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "StatusReadings":
        """Begin with the first answer."""
        watched = cls(status=status)
        watched.see(status)
        return watched

    def see(self, status: Mapping[str, Any]) -> None:
        """Take in an answer."""
        self.status, self.silent_s = status, 0.0
        self.metric.append(live_metric(status)[1])
        self.lag.append(status["stream"].get("lag_s"))
        self.rate.append(status["throughput"]["records_per_s"].get("10s"))

    def miss(self, silent_s: float) -> None:
        """Note that the service has not answered for `silent_s` seconds."""
        self.silent_s = silent_s
        for series in (self.metric, self.lag, self.rate):
            series.append(None)


def live_metric(status: Mapping[str, Any]) -> tuple[str, float | None, float | None]:
    """Return the live metric that matters most: its name, its value, and what guessing would have scored."""
    live = status.get("live") or {}
    name = live.get("headline", "loss")
    return name, live.get(name), live.get("baseline", {}).get(name)
