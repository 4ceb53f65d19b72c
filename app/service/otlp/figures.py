"""The figures of what is sent by OTLP. Pure; runs anywhere."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import Moment, PartFigures, counter


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpFigures(PartFigures):
    """The metrics and traces that are sent to opentelemetry.endpoint; left out where it is not set."""

    name: ClassVar = "opentelemetry"
    within: ClassVar = ""
    section: ClassVar = "Process"

    endpoint: str
    """Where they are sent to."""
    sent: Annotated[int, counter("otlp_requests", "Bad: it stands still for many times opentelemetry.interval.")] = 0
    """Requests that the receiver has accepted."""
    failed: Annotated[int, counter("otlp_requests_failed", "Bad: it grows; /status says why.")] = 0
    """Requests that the receiver has not accepted: their metrics are in the next one, and their traces are lost."""
    spans: Annotated[int, counter("otlp_spans", "Bad: it stands still while records are learnt.")] = 0
    """Spans that the receiver has accepted."""
    sent_at: Moment | None = None
    """When it accepted one last."""
    error: str | None = None
    """Why the newest one was not accepted; left out where it was."""
