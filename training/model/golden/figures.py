"""The figures of the golden set. Pure; runs anywhere, without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import NoMetric, PartFigures, gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenFigures(PartFigures):
    """With `golden.path`: what the newest durable checkpoint scores on the golden set."""

    name: ClassVar = "golden"
    within: ClassVar = "training"
    section: ClassVar = "Checkpoints"

    rows: Annotated[
        int, gauge("golden_rows", "Bad: fewer than the set has, as some do not decode; `millrace validate` says why.")
    ]
    """Records of the golden set that are scored."""
    sha256: str
    """Of the set: scores can be compared where it is the same."""
    checkpoint: Annotated[int | None, NoMetric("names a checkpoint")] = None
    """The newest durable one that was scored on this set."""
    values: Annotated[
        Mapping[str, float] | None,
        gauge("golden_value", "Bad: it gets worse from checkpoint to checkpoint.", "metric"),
    ] = None
    """The score of the newest durable checkpoint on the golden set, by compiled metric."""
    took_s: Annotated[
        float | None,
        gauge("golden_took_seconds", "Bad: near checkpoints.every; take fewer records."),
    ] = None
    """How long the training stood still to score the set, the last time."""
    error: str | None = None
    """Why the set was not scored the last time; left out where it was."""
