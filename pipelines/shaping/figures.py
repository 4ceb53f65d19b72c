"""The figures of what is shaped inside the training call. Pure; runs anywhere, without TensorFlow."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import Float32, NoMetric, PartFigures, gauge


@dataclass(frozen=True, slots=True)
class ReservoirFigures(PartFigures):
    """With `reservoir`: what is remembered of what was learnt."""

    name: ClassVar = "reservoir"
    within: ClassVar = "training"

    rows: Annotated[int, gauge("reservoir_rows", "Bad: it stays below reservoir.size.")]
    """Past rows that `reservoir` holds."""
    size: Annotated[int, NoMetric("is in the settings")]
    """The most rows that it may hold."""
    seen: Annotated[int, gauge("reservoir_seen_records", "Bad: it falls without a rewind.")]
    """Records that the rows are a uniform sample of."""
    age: Annotated[
        int,
        gauge("reservoir_age_records", "Bad: from before the stream changed; then replay slows the model down."),
    ]
    """The median age of the rows, in records that were learnt since."""


@dataclass(frozen=True, slots=True)
class ClassFigures(PartFigures):
    """With `balance`: each class before and after."""

    name: ClassVar = "classes"
    within: ClassVar = "training"
    per: ClassVar = "class"

    share: Annotated[Float32, gauge("class_share", "Bad: it departs from the share that the class is known to have.")]
    """The share of each class of `balance` on the stream."""
    weight: Annotated[Float32, gauge("class_weight", "Bad: hundreds; single records then dominate.")]
    """The factor by which the updates of the class are multiplied."""
    learnt_share: Annotated[
        Float32, gauge("class_learnt_share", "Bad: far from balance.target for hours; the class does not come.")
    ]
    """The share of the class in the learning."""
