"""The figures of labels that come later. Pure; runs anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import NoMetric, PartFigures, counter, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFigures(PartFigures):
    """With `labels`: what became of records and labels, in this history, at what is settled."""

    name: ClassVar = "join"
    within: ClassVar = "training"

    records: Annotated[
        Mapping[str, int],
        counter("join_records", "Bad: absent or too_old grows where labels are expected.", "outcome"),
    ]
    """Records by what became of them: labelled; absent: no label came in time; dropped: for want of one; too_old: they
    came so late that their labels may be gone."""
    labels: Annotated[
        Mapping[str, int],
        counter(
            "join_labels",
            "Bad: late grows: raise labels.within or labels.early; unused: no record has the key.",
            "outcome",
        ),
    ]
    """Labels by what became of them: used, duplicate, late, unused, refused; skipped: a rewind has cut them out."""
    delays_s: Annotated[
        Mapping[str, float],
        gauge("join_delay_seconds", "Bad: the one of 0.99 is near labels.within: raise it.", "quantile"),
    ]
    """How long after their records labels came: half of them within this time, nine of ten, 99 of 100. At most a fifth
    too long; empty before the first."""
    waiting: Annotated[int, gauge("join_waiting_labels", "Bad: it grows for ever.")]
    """Labels that records may still come for."""
    bytes: Annotated[int, gauge("join_waiting_bytes", "Bad: a large part of the pod's memory.")]
    """The memory that these take."""
    behind_s: Annotated[float | None, gauge("join_behind_seconds", "Bad: far above labels.within.")]
    """How far the slowest topic of labels is read, as the time until now; None before it is known."""
    silent_s: Annotated[float, gauge("join_silent_seconds", "Bad: above 0; the learning waits for labels.")]
    """For how long no label has come, where that is so long that the learning waits; 0 where it is not."""
    patience_s: Annotated[float, NoMetric("is what silent_s is judged by")]
    """How long no label may come at this time of the day, by the topics' own past."""
