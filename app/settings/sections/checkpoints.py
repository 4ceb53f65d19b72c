"""`checkpoints`: where they are kept, how often one is saved, which ones stay."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from millrace.app.settings.sections.archive import ArchivePlace
from millrace.consumers.section import ConfigPath, Count, Section
from millrace.consumers.units import format_duration, parse_duration

_STEPS = re.compile(r"\s*([1-9]\d{0,14})\s*steps?\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """How often to save: by time or by steps, exactly one of them."""

    seconds: float | None = None
    steps: int | None = None

    def __str__(self) -> str:
        return format_duration(self.seconds) if self.seconds is not None else f"{self.steps} steps"


def _every(value: object) -> Every:
    if isinstance(value, Every):
        return value
    if isinstance(value, int | float):
        raise ValueError(f"{value} has no unit; write 60s, or 5000 steps")  # noqa: TRY004 - pydantic collects these
    if match := _STEPS.fullmatch(str(value)):
        return Every(steps=int(match[1]))
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or steps, as in 5000 steps") from None
    if seconds < 1:
        raise ValueError(f"{value!r} is too often; write at least 1s")
    return Every(seconds=seconds)


SaveEvery = Annotated[
    Every,
    BeforeValidator(_every),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["60s", "5000 steps"]}),
]


class KeepSettings(Section):
    """Which checkpoints stay."""

    last: Count = Field(5, ge=1, description="The number of newest checkpoints that are kept.")
    hourly: Count = Field(
        0,
        ge=0,
        description="In addition, one checkpoint is kept for each of this many latest hours that have one.",
    )
    best: Count = Field(
        0,
        ge=0,
        description="In addition, this many of the best checkpoints are kept, by the watched metric "
        "(training.live_metrics.watch). Only those of the present timeline count, and only if their window "
        "had scored enough records.",
    )


class CheckpointSettings(Section):
    """The checkpoints, from which a restart resumes."""

    path: ConfigPath = Field(
        description="Folder for checkpoints, one folder per name below it.", examples=["./checkpoints"]
    )
    mirror: ArchivePlace | None = Field(
        None,
        description="Where checkpoints are copied to when they are durable, for when the volume is lost: the URL of a "
        "place in an object store, as s3://bucket/models, or a folder on another volume; one folder per name "
        "below it. A start whose own folder has none as new resumes from the newest one there. Null: nothing "
        "is copied.",
        examples=["s3://bucket/models"],
    )
    every: SaveEvery = Field(
        Every(seconds=60.0), description="How often to save: a time (60s) or a number of steps (5000 steps)."
    )
    on_missing: Literal["start", "fail"] = Field(
        "start",
        description="The reaction if the folder of this name holds no checkpoint, although the group's committed "
        "offsets show that the model has learnt before, as with a volume that is not mounted. start: begin "
        "with new weights, with a warning in the log and the problem history_missing. fail: end with an "
        "error. With kafka.start: committed nothing is compared.",
    )
    keep: KeepSettings = Field(
        KeepSettings(),
        description="The checkpoints that stay. The newest and every beginning always stay, and the one to fall back "
        "to unless the volume is full.",
    )
    sample: Count = Field(
        256,
        ge=0,
        le=4096,
        description="The number of the topic's first records that are kept beside the checkpoints, so that each start "
        "can try the model and preprocess on real records. They never leave that folder. 0: none is kept, "
        "an existing file is removed, and each start reads some records from the topic.",
    )
