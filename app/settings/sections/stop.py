"""`stop`: how the service ends."""

from pydantic import Field

from millrace.consumers.section import Section
from millrace.consumers.units import Duration


class StopSettings(Section):
    """How the service ends."""

    grace: Duration = Field(
        25.0,
        ge=1,
        description="The longest time from SIGTERM to the end: finish the call, save, commit. Set it shorter than the "
        "time that the sender of the SIGTERM waits.",
    )
