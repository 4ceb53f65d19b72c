"""`limits`: how long the trainer's phases may take before it counts as hung."""

from pydantic import Field

from millrace.consumers.section import Section
from millrace.consumers.units import Duration


class LimitSettings(Section):
    """How long the trainer may take for one thing before it counts as hung and /livez fails."""

    trace: Duration = Field(900.0, ge=1, description="Building the model, tracing and proving it.")
    restore: Duration = Field(600.0, ge=1, description="Loading a checkpoint, at a start or for a rewind.")
    call: Duration = Field(300.0, ge=1, description="One call, or preparing the records for it.")
