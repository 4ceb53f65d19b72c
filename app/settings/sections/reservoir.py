"""`reservoir`: a memory of what was learnt. `to_reservoir` makes of it what the learner goes by."""

from pydantic import Field

from millrace.consumers.section import Count, Section
from millrace.consumers.units import Share
from millrace.pipelines.shaping.options import ReservoirOptions


class ReservoirSettings(Section):
    """A memory of what was learnt, some of which is learnt again beside each batch."""

    size: Count | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="How many rows are remembered: a uniform sample of all that were learnt. They are held once, and "
        "are in each checkpoint. Null: none.",
        examples=[100_000],
    )
    share: Share = Field(
        0.2,
        gt=0,
        le=0.9,
        description="The share of them in what is learnt: with 0.2, or 20 %, one is learnt again beside each four that "
        "are new.",
    )


def to_reservoir(reservoir: ReservoirSettings) -> ReservoirOptions | None:
    """Return what is remembered; None where nothing is."""
    if reservoir.size is None:
        return None
    return ReservoirOptions(size=reservoir.size, share=reservoir.share)
