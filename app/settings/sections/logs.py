"""`logs`: what the service logs."""

from typing import Literal

from pydantic import Field

from millrace.consumers.section import Section
from millrace.consumers.units import Duration


class LogSettings(Section):
    """What the service logs on stderr."""

    format: Literal["auto", "text", "json"] = Field(
        "auto", description="text for people, json for machines; auto is text on a terminal and json elsewhere."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level that is logged; commands are always logged."
    )
    progress: Duration = Field(
        60.0,
        ge=0,
        description="How often one line reports the progress: rate, lag, live metric and base rate, and the "
        "bottleneck. 0s: never.",
    )
