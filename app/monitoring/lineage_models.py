"""The answer about one checkpoint: itself and its lineage."""

from collections.abc import Mapping

from millrace.app.monitoring.checkpoint_models import CheckpointAnswer
from millrace.app.monitoring.models import RewoundView, SkipView
from millrace.app.monitoring.shapes import Shape


class HistoryView(Shape):
    """The outcome of a partition's offsets: position - start = learnt + set aside + skipped + gaps + lost."""

    start: int
    """The offset at which this history begins."""
    position: int
    """The next offset: everything before it is settled."""
    learnt: int
    set_aside: Mapping[str, int]
    """By reason."""
    skipped: Mapping[str, int]
    """By the command that skips them."""
    gaps: int
    lost: int
    truncated: Mapping[str, int] | None = None
    """Records with a list that was cut to its bound, by feature; left out for none."""
    former: list["HistoryView"] | None = None
    """The outcomes of earlier topics of the same name, the oldest first."""


class EventTimeView(Shape):
    """The event times of what was learnt."""

    oldest: str
    newest: str


class LinkView(Shape):
    """Checkpoints in a row that were made for the same reason, by the same code and settings."""

    first: int
    """The nearest of them."""
    last: int
    """The one furthest back."""
    count: int
    """How many of them the chain knows; others between them were pruned before."""
    reason: str | None = None
    """Left out, with all that follows, where they are not on disk."""
    ordered_by: str | None = None
    note: str | None = None
    config_sha256: str | None = None
    model_sha256: str | None = None
    version: str | None = None
    """Of millrace."""


class LineageAnswer(CheckpointAnswer):
    """One checkpoint and its lineage."""

    history: Mapping[str, HistoryView] | None = None
    """By partition; left out where it is damaged."""
    event_time: EventTimeView | None = None
    """Left out where nothing was learnt, or a version that did not look began the history."""
    skips: list[SkipView] | None = None
    rewound: RewoundView | None = None
    chain: list[LinkView] | None = None
    """Its parents, the nearest first."""
