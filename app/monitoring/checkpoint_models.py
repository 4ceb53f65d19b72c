"""The answers about checkpoints: the list of them, one in full, and its lineage."""

from collections.abc import Mapping
from typing import Any

from millrace.app.monitoring.models import RewoundView, SkipView
from millrace.app.monitoring.shapes import Answer, Shape
from millrace.training.history.lineage import Link


class MeasuredView(Shape):
    """What the metrics of a checkpoint were measured on."""

    watched: str
    """The metric by which the model was judged."""
    higher_is_better: bool
    records: int
    """How many records the window had scored, each before it was learnt."""
    window_s: float
    """How far back the window reached."""
    baseline: Mapping[str, float]
    """What guessing would have scored on the same records."""


class GoldenView(Shape):
    """What the weights of a checkpoint score on the golden set."""

    rows: int
    """The records that were scored; none of them is ever learnt."""
    sha256: str
    """Of the set: scores can be compared where it is the same."""
    values: Mapping[str, float]
    """The loss and the compiled metrics."""


class PinView(Shape):
    """That somebody wants a checkpoint to stay, whatever `checkpoints.keep` says."""

    by: str
    since: str


class Checkpoint(Shape):
    """One checkpoint, as its manifest has it."""

    number: int
    condition: str
    """good, corrupt, fenced or newer."""
    parent: int | None = None
    term: int | None = None
    incarnation: int | None = None
    step: int | None = None
    reason: str | None = None
    ordered_by: str | None = None
    note: str | None = None
    created_at: str | None = None
    bytes: int | None = None
    metrics: Mapping[str, float] | None = None
    """The live metrics over the window when it was made."""
    measured: MeasuredView | None = None
    """What they were measured on; left out if an earlier version made the checkpoint."""
    golden: GoldenView | None = None
    """What its weights score on the golden set; left out if there was none."""
    pins: list[PinView] | None = None
    """Who has pinned it; left out if nobody has."""
    complaints: list[str] | None = None
    """What is wrong with it."""


class CheckpointInFull(Checkpoint):
    """All that is known of one checkpoint."""

    verified: bool
    """Whether every byte was read and hashed just now, and is what was written."""
    ancestors: list[int] | None = None
    files: Mapping[str, Any] | None = None
    positions: Mapping[str, int] | None = None
    """The next offset of each partition."""
    provenance: Mapping[str, Any] | None = None


class OtherFolder(Shape):
    """Something else in the checkpoints' folder."""

    name: str
    condition: str
    """temporary or unknown."""


class CheckpointList(Answer):
    """The checkpoints, the newest first."""

    checkpoints: list[Checkpoint]
    others: list[OtherFolder]
    """Half written, half removed, or not ours."""
    total: int
    best: int | None = None
    """The best on the present timeline by the watched metric; left out if none counts."""
    next: str | None = None
    """The path of the next page."""


class PinsAnswer(Answer):
    """The pins of one checkpoint, after a command."""

    number: int
    pins: list[PinView]


class CheckpointAnswer(Answer):
    """One checkpoint."""

    checkpoint: CheckpointInFull


class HistoryView(Shape):
    """The outcome of a partition's offsets.

    position - start = learnt + set aside + skipped + filtered + gaps + lost.
    """

    start: int
    """The offset at which this history begins."""
    position: int
    """The next offset: everything before it is settled."""
    learnt: int
    set_aside: Mapping[str, int]
    """By reason."""
    skipped: Mapping[str, int]
    """By the command that skips them."""
    filtered: int | None = None
    """Records that do not match `records.where`; left out for none."""
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


class LineageAnswer(CheckpointAnswer):
    """One checkpoint and its lineage."""

    history: Mapping[str, HistoryView] | None = None
    """By partition; left out if it is damaged."""
    event_time: EventTimeView | None = None
    """Left out if nothing was learnt, or a version that did not look began the history."""
    skips: list[SkipView] | None = None
    rewound: RewoundView | None = None
    chain: list[Link] | None = None
    """Its parents, the nearest first."""
