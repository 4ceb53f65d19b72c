"""The figures of a mixture. Pure; runs anywhere, without TensorFlow."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, gauge


@dataclass(frozen=True, slots=True)
class MembersFigures(PartFigures):
    """With `training.members`: how the copies of the model are mixed just now."""

    name: ClassVar = "members"
    within: ClassVar = "training"

    since_drift_share: Annotated[
        float, gauge("members_since_drift_share", "Bad: near 0 for long; the stream changes faster than it learns.")
    ]
    """The share of the member `since_drift` in what is answered, from 0 to 1."""
    once_share: Annotated[
        float, gauge("members_once_share", "Bad: near 1 for long; what is new is noise, and fewer passes are enough.")
    ]
    """The share of the member `once`, from 0 to 1; 0 without one."""
    since_drift_records: Annotated[
        int, gauge("members_since_drift_records", "Bad: far below training.members.since_drift, again and again.")
    ]
    """The last records that the member `since_drift` draws from: those since the stream has changed."""
    restarts: Annotated[int, gauge("members_restarts", "Bad: it grows; the stream changes, or its loss is too noisy.")]
    """How often the member `since_drift` has begun anew since the model was made."""
