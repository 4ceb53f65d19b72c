"""The answer about one checkpoint: itself and its lineage."""

from collections.abc import Mapping

from pydantic import Field

from app.monitoring.models import CheckpointAnswer, RewoundView, Shape, SkipView


class HistoryView(Shape):
    """The outcome of a partition's offsets: position - start = learnt + set aside + skipped + gaps + lost."""

    start: int = Field(description="The offset at which this history begins.")
    position: int = Field(description="The next offset: everything before it is settled.")
    learnt: int
    set_aside: Mapping[str, int] = Field(description="By reason.")
    skipped: Mapping[str, int] = Field(description="By the command that skips them.")
    gaps: int
    lost: int
    truncated: Mapping[str, int] | None = Field(
        None, description="Records of which a list was cut to its bound, by feature; left out for none."
    )
    former: list["HistoryView"] | None = Field(
        None, description="The outcomes of earlier topics of the same name, the oldest first."
    )


class EventTimeView(Shape):
    """The event times of what was learnt."""

    oldest: str
    newest: str


class LinkView(Shape):
    """Checkpoints in a row that were made for the same reason, by the same code and settings."""

    first: int = Field(description="The nearest of them.")
    last: int = Field(description="The one furthest back.")
    count: int = Field(description="How many of them the chain knows; others between them were pruned before.")
    reason: str | None = Field(None, description="Left out, with all that follows, where they are not on disk.")
    ordered_by: str | None = None
    note: str | None = None
    config_sha256: str | None = None
    model_sha256: str | None = None
    version: str | None = Field(None, description="Of millrace.")


class LineageAnswer(CheckpointAnswer):
    """One checkpoint and its lineage."""

    history: Mapping[str, HistoryView] | None = Field(None, description="By partition; left out where it is damaged.")
    event_time: EventTimeView | None = Field(
        None, description="Left out where nothing was learnt, or a version that did not look began the history."
    )
    skips: list[SkipView] | None = None
    rewound: RewoundView | None = None
    chain: list[LinkView] | None = Field(None, description="Its parents, the nearest first.")
