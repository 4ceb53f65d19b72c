"""What the answers show of exports. Owns shapes only."""

from collections.abc import Mapping

from millrace.app.monitoring.shapes import Answer, Shape


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
