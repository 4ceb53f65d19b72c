"""What `/events` and `/history` are answered with."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from app.monitoring.models import Answer, Shape, Status, moment
from training.telemetry.events import Event

Column = list[float | None]


class EventView(Shape):
    """Something that has happened."""

    id: int = Field(description="Greater than that of each event before it, also over a restart.")
    at: str
    kind: str = Field(description="The kind of event, for programs.")
    severity: str = Field(description="info, warning or error.")
    text: str
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, event: Event) -> "EventView":
        """Return the view of an event."""
        return cls(
            id=event.id,
            at=moment(event.at),
            kind=event.kind.value,
            severity=event.severity.value,
            text=event.text,
            facts=event.facts,
        )


class EventsAnswer(Answer):
    """What has happened, the oldest first."""

    events: list[EventView]
    newest: int = Field(description="The value of `since` for the next request.")


class Means(Shape):
    """Columns of equal length; null where nothing was known."""

    metric: Column = Field(description="The live metric that is named.")
    baseline: Column = Field(description="What always guessing the base rate would score.")
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


class HistoryAnswer(Answer):
    """The history of the main numbers."""

    span: str
    step_s: int
    metric: str | None = Field(None, description="The name of the live metric.")
    at: list[float] = Field(
        description="When each step began, seconds since 1970; steps without a sample are left out."
    )
    mean: Means
    least: Extremes | None = Field(None, description="Left out where a step is a single sample.")
    greatest: Extremes | None = None


class PageUpdate(Shape):
    """The page's own message, once a second. It is not part of the public API."""

    at: float = Field(description="Seconds since 1970.")
    status: Status
    metric: str | None = Field(None, description="The name of the live metric.")
    sample: Mapping[str, float | None] = Field(description="The newest value of each column of the charts.")
    events: list[EventView] = Field(description="What has happened since the message before, the oldest first.")
