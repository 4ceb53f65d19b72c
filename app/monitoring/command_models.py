"""The bodies of commands, and the answers that only commands have."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import ConfigDict, Field

from millrace.app.monitoring.checkpoint_models import MeasuredView
from millrace.app.monitoring.models import SkipView
from millrace.app.monitoring.shapes import Answer, Shape, Tenths
from millrace.training.history.rewind import Replay

_LINE = r"^[^\x00-\x1f\x7f]*$"
_NO_NUMBER = r"^[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f0-9][^\x00-\x1f\x7f]*$"
Where = Annotated[int, Field(ge=0, le=10**15, strict=True)] | Annotated[str, Field(max_length=300, pattern=_NO_NUMBER)]


class SaveBody(Shape):
    """The body of a save."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "before the sale"}]})

    note: str | None = Field(None, max_length=500, pattern=_LINE)
    """Why; recorded with the checkpoint."""


class UnpinBody(Shape):
    """The body of an unpin."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "ops over HTTP"}]})

    by: str | None = Field(None, max_length=200, pattern=_LINE)
    """Whose pin to lift; without it, all pins of the checkpoint."""


class ProfileBody(Shape):
    """The body of a profile."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"calls": 50}]})

    calls: int = Field(20, ge=1, le=1000, strict=True)
    """How many calls it should show."""


class ResumeBody(Shape):
    """The body of a resume."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"assume_absent": True}]})

    assume_absent: bool = Field(default=False, strict=True)
    """Whether labels that have not come are taken for none: what waits for them is learnt without."""


class RestoreBody(Shape):
    """The body of a restore."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"skip": ["clicks:0:100-200"], "reason": "a broken producer"}]}
    )

    skip: list[str] = Field(default_factory=list, max_length=100)
    """Ranges to skip, as in clicks:0:100-200; both ends are skipped too."""
    unskip: list[str] = Field(default_factory=list, max_length=100)
    """Earlier commands to skip that should no longer hold, as in rewind-17; all others stay."""
    reason: str | None = Field(None, max_length=500, pattern=_LINE)
    """Why; recorded with the checkpoint."""
    dry_run: bool = False
    """Only answer with what would be done."""


class RewindBody(RestoreBody):
    """Where to go back to, and what to skip."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"to": 37, "skip": ["clicks:0:100-200"], "reason": "a broken producer"}]}
    )

    to: Where = Field(
        description="The number of a checkpoint; or a time (2026-11-21T03:00:00Z), an age (-2h) or an offset "
        "(clicks:0:1200): the newest checkpoint on the present timeline from before it; or best (by the watched "
        "metric) or latest.",
    )


class RewindPlanAnswer(Answer):
    """What a rewind would do; nothing was done."""

    to: int
    step: int
    """Of that checkpoint."""
    created_at: str
    """When it was written."""
    why: str | None = None
    """Why it is the best, if the best was asked for."""
    metrics: Mapping[str, float] | None = None
    """Its live metrics when it was made; left out if they are not known."""
    measured: MeasuredView | None = None
    """What they were measured on; left out if it is not known."""
    learnt_to: str | None = None
    """The newest event time that it has learnt."""
    replayed: int
    skipped: int
    gone: int | None = None
    """Offsets that Kafka has no more; left out if it could not be asked."""
    takes_s: Tenths | None = None
    """How long the replay takes at the best rate of the last five minutes; left out without one."""
    advice: str | None = None
    """What to do if some are gone."""
    skips: list[SkipView] | None = None
    """Earlier commands to skip, which stay in force."""
    partitions: Mapping[str, Replay]


class StateAnswer(Answer):
    """The trainer's phase after a command."""

    state: str
    reason: str | None = None


class ProfileAnswer(Answer):
    """A profile that was written."""

    folder: str
    """On the trainer's machine."""
    calls: int
    """How many calls it shows; fewer than asked for if records were slow to come."""
    open: str
    """The command that shows it."""
