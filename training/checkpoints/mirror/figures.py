"""The figures of the mirror. Pure; runs anywhere."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import Moment, NoMetric, PartFigures, counter, elapsed, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFigures(PartFigures):
    """The copies of the checkpoints at checkpoints.mirror; left out where there is no mirror."""

    name: ClassVar = "mirror"
    within: ClassVar = ""

    place: str
    """Where it is."""
    number: Annotated[int | None, gauge("mirror_number", "Bad: far behind millrace_checkpoint_number.")] = None
    """The newest checkpoint that is whole in the mirror."""
    made_at: Annotated[
        Moment | None,
        elapsed(
            "mirror_age_seconds",
            "The age of the newest checkpoint that is whole in the mirror: what is learnt since would be learnt again "
            "if the volume were lost. Bad: many times checkpoints.every while records are learnt.",
        ),
    ] = None
    waiting_since: Annotated[
        Moment | None,
        elapsed(
            "mirror_behind_seconds",
            "How long a durable checkpoint has waited for its copy; 0 if none does. Bad: it grows; /status says why.",
            unless=0.0,
        ),
    ] = None
    copied: Annotated[int, counter("mirror_copies", "Bad: it stands still while checkpoints are made.")] = 0
    """Checkpoints that this process has copied."""
    failed: Annotated[int, counter("mirror_failures", "Bad: it grows; /status and the log say why.")] = 0
    """Attempts that failed; each is repeated."""
    resumed_from: Annotated[int | None, NoMetric("names a checkpoint")] = None
    """The checkpoint that this start has brought back from the mirror; left out where it found its own."""
    error: str | None = None
    """Why nothing is copied; left out where nothing fails."""
