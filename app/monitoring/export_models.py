"""What the answers show of exports. Owns shapes only."""

from collections.abc import Mapping

from millrace.app.monitoring.shapes import Answer, Moment, Shape


class ExportsView(Shape):
    """The exports that the trainer has made beside its work, in this process."""

    made: int
    refused: int
    """Exports of which nothing was published."""
    newest: int | None = None
    """The version that was published last."""
    newest_at: Moment | None = None
    running: int | None = None
    """The checkpoint that is being exported."""
    running_since: Moment | None = None
    """Left out while none is."""
    missing: list[str] | None = None
    """What `export.only_if` holds exports back for; left out where it does not."""
    missing_since: Moment | None = None
    error: str | None = None
    """Why nothing was published the last time; left out where something was."""
    unannounced: int | None = None
    """Versions that wait for being announced; left out where `export.announce` is not set."""
    announce_error: str | None = None
    """Why they wait; left out where nothing fails."""


class ExportView(Shape):
    """One published version."""

    number: int
    """The checkpoint's number."""
    made_at: str
    records: int
    """The records that it had learnt."""
    metrics: Mapping[str, float]
    """The live metrics when the checkpoint was made."""
    bytes: int
    proven_on: int
    """Records on which a fresh process answered as the model does."""
    max_difference: float


class ExportList(Answer):
    """The published versions, the newest first."""

    exports: list[ExportView]
