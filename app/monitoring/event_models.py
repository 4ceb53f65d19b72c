"""What `/events` and `/history` are answered with."""

from collections.abc import Mapping
from typing import Any

from millrace.app.monitoring.models import Status
from millrace.app.monitoring.shapes import Answer, Moment, Shape

Column = list[float | None]


class EventView(Shape):
    """Something that has happened."""

    id: int
    """Greater than that of each event before it, also over a restart."""
    at: Moment
    kind: str
    """The kind of event, for programs."""
    severity: str
    """info, warning or error."""
    text: str
    facts: Mapping[str, Any]


class EventsAnswer(Answer):
    """What has happened, the oldest first."""

    events: list[EventView]
    newest: int
    """The value of `since` for the next request."""


class Means(Shape):
    """Columns of equal length; null if nothing was known."""

    metric: Column
    """The live metric that is named."""
    baseline: Column
    """What guessing would have scored in it."""
    lag_s: Column
    learnt_per_s: Column
    arriving_per_s: Column
    waiting_records: Column
    waiting_input: Column
    waiting_compute: Column
    waiting_saving: Column


class Extremes(Shape):
    """The least or the greatest in each step."""

    metric: Column
    lag_s: Column
    learnt_per_s: Column
    arriving_per_s: Column


class LastValue(Shape):
    """The last value of a live metric, also while nothing is scored, and over a restart."""

    value: float
    baseline: float | None = None
    """What guessing scored on the same records."""
    at: float
    """When the newest of its records was scored, seconds since 1970."""


class Stretch(Shape):
    """What a tier of the history holds, the oldest first."""

    span: str
    step_s: int
    metric: str | None = None
    """The name of the live metric."""
    metrics: list[str]
    """The names of all metrics that have a history."""
    last: LastValue | None = None
    """The last value of the metric; `mean` ends before it if nothing is scored any more."""
    at: list[float]
    """When each step began, seconds since 1970; steps without a sample are left out."""
    mean: Means
    least: Extremes | None = None
    """Left out if a step is a single sample."""
    greatest: Extremes | None = None


class HistoryAnswer(Stretch, Answer):
    """The history of the main numbers."""


class PageUpdate(Shape):
    """The page's own message, once a second. It is not part of the public API."""

    at: float
    """Seconds since 1970."""
    status: Status
    metric: str | None = None
    """The name of the live metric."""
    sample: Mapping[str, float | None]
    """The newest value of each column of the charts."""
    last: Mapping[str, LastValue]
    """The last value of each live metric."""
    events: list[EventView]
    """What has happened since the message before, the oldest first."""
