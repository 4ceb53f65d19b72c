"""`stop`, `limits`, `memory`, `logs`: how the process ends, how long it may take, how much it holds, what it logs."""

from typing import Literal

from pydantic import Field

from millrace.consumers.section import Section
from millrace.consumers.units import Duration, Size


class StopSettings(Section):
    """How the service ends."""

    grace: Duration = Field(
        25.0,
        ge=1,
        description="The longest time from SIGTERM to the end: finish the call, save, commit. Set it shorter than the "
        "time that the sender of the SIGTERM waits.",
    )


class LimitSettings(Section):
    """How long the trainer may take for one thing before it counts as hung and /livez fails."""

    trace: Duration = Field(900.0, ge=1, description="Building the model, tracing and proving it.")
    restore: Duration = Field(600.0, ge=1, description="Loading a checkpoint, at a start or for a rewind.")
    call: Duration = Field(300.0, ge=1, description="One call, or preparing the records for it.")


class MemorySettings(Section):
    """The memory between Kafka and the model."""

    limit: Size = Field(
        256 * 2**20,
        ge=2**20,
        description="The bound of everything that is fetched and not yet learnt: the client's buffers, chunks, decoded "
        "columns and blocks together.",
    )


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
