"""The figures of what is served, by version. Pure; runs anywhere, without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, counter, gauge

NAME = "served"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFigures(PartFigures):
    """With `serve.log`: each version that has answered, the newest first, scored by the labels of the same records.

    A score's interval has a probability of 95 %.
    """

    name: ClassVar = NAME
    within: ClassVar = "training"
    section: ClassVar = "Live metrics"
    per: ClassVar = "version"

    records: Annotated[int, gauge("served_records", "Bad: 0 for the version that answers.")]
    """Predictions of the version in the window of the live metrics that were scored."""
    values: Annotated[
        Mapping[str, float], gauge("served_value", "Bad: far worse than millrace_served_live_value.", "metric")
    ]
    """The scores of what the version answered, over the window."""
    lowest: Annotated[
        Mapping[str, float],
        gauge("served_value_lowest", "Bad: above millrace_served_live_value, where lower is better.", "metric"),
    ]
    """Where the interval of each score begins; none for a score without one."""
    highest: Annotated[
        Mapping[str, float],
        gauge("served_value_highest", "Bad: below millrace_served_live_value, where higher is better.", "metric"),
    ]
    """Where the interval of each score ends; none for a score without one."""
    live: Annotated[Mapping[str, float], gauge("served_live_value", "Bad: as millrace_live_value.", "metric")]
    """The same scores of what the model in training answered to the same records, before it learnt them."""
    cumulative: Annotated[
        Mapping[str, float],
        gauge("served_cumulative_value", "Bad: better than millrace_served_value for long.", "metric"),
    ]
    """The scores since checkpoint number 0; a rewind goes back."""
    cumulative_records: Annotated[int, gauge("served_cumulative_records", "Bad: it stands still.")]
    """Predictions of the version that were scored since checkpoint number 0; a rewind goes back."""
    read: Annotated[
        int, counter("served_read", "Bad: far above millrace_served_cumulative_records: their records do not come.")
    ]
    """Predictions of the version that were read from the topic since checkpoint number 0; a rewind goes back."""
