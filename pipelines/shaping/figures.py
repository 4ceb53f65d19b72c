"""The figures of what is shaped inside the training call. Pure; runs anywhere, without TensorFlow."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import Float32, NoMetric, PartFigures, gauge


@dataclass(frozen=True, slots=True)
class ReservoirFigures(PartFigures):
    """With `reservoir`: what is remembered of what was learnt."""

    name: ClassVar = "reservoir"
    within: ClassVar = "training"

    rows: Annotated[int, gauge("reservoir_rows", "Bad: fewer than reservoir.size for ever.")]
    """Rows of the past that `reservoir` holds."""
    size: Annotated[int, NoMetric("is in the settings")]
    """The most rows that it may hold."""
    seen: Annotated[int, gauge("reservoir_seen_records", "Bad: it falls without a rewind.")]
    """Records that they are a uniform sample of."""
    age: Annotated[
        int,
        gauge("reservoir_age_records", "Bad: of a world that is no more; then replay slows the model down."),
    ]
    """How many records were learnt since half of the rows were."""


@dataclass(frozen=True, slots=True)
class ClassFigures(PartFigures):
    """With `balance`: each class before and after."""

    name: ClassVar = "classes"
    within: ClassVar = "training"
    per: ClassVar = "class"

    share: Annotated[Float32, gauge("class_share", "Bad: it moves away from what is known of the world.")]
    """The share of the stream that each class of `balance` has."""
    weight: Annotated[Float32, gauge("class_weight", "Bad: hundreds; single records then rule.")]
    """By what the updates of the class are multiplied."""
    learnt_share: Annotated[
        Float32, gauge("class_learnt_share", "Bad: far from balance.target for hours; the class does not come.")
    ]
    """The share that the class has in what is learnt."""
