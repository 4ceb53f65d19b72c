"""`opentelemetry`: where metrics and traces of calls go, and how often."""

from typing import Annotated

from pydantic import AfterValidator, Field

from millrace.app.settings.sections.http_url import url_of
from millrace.consumers.section import ConfigPath, Section
from millrace.consumers.units import Duration

_url = url_of("receiver", "http://collector:4318", "write the login into headers_file")


class OpenTelemetrySettings(Section):
    """Metrics and traces that are sent by OTLP over HTTP."""

    endpoint: Annotated[str, AfterValidator(_url)] | None = Field(
        None,
        description="The receiver of metrics and traces, by OTLP over HTTP; /v1/metrics and /v1/traces are added. It "
        "needs the extra `opentelemetry` (docs/install.md). Null: nothing is sent, and OpenTelemetry is not loaded.",
        examples=["http://collector:4318"],
    )
    headers_file: ConfigPath | None = Field(
        None,
        description="File with headers of each request, one a line, as `authorization: Bearer …`. It is read at the "
        "start.",
    )
    interval: Duration = Field(60.0, ge=1, description="How often metrics and finished traces are sent.")
    trace_every: Duration = Field(
        10.0,
        ge=0,
        description="How often one call is traced, from the fetch of its oldest record to the end of its step. A call "
        "in each second at most. 0s: neither calls nor saves are traced.",
    )
