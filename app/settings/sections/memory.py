"""`memory`: how much may be in flight."""

from pydantic import Field

from millrace.consumers.section import Section
from millrace.consumers.units import Size


class MemorySettings(Section):
    """The memory between Kafka and the model."""

    limit: Size = Field(
        256 * 2**20,
        ge=2**20,
        description="The bound of everything that is fetched and not yet learnt: the client's buffers, chunks, decoded "
        "columns and blocks together.",
    )
