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
class LabelFigures(PartFigures):
    """With `records.label.classes`: the classes of each label that have appeared."""

    name: ClassVar = "labels"
    within: ClassVar = "training"
    per: ClassVar = "label"

    known: Annotated[int, gauge("label_classes", "Bad: as many as records.label.classes; further ones are set aside.")]
    """Classes of the label that have appeared."""
    most: Annotated[int, NoMetric("is in the settings")]
    """How many there may be."""
    classes: tuple[str, ...]
    """The first 200 of them, by their numbers from 0."""


@dataclass(frozen=True, slots=True)
class ScaledFigures(PartFigures):
    """With `scale: running`: by what each feature of one value is scaled just now."""

    name: ClassVar = "scaled"
    within: ClassVar = "training"
    per: ClassVar = "feature"

    mean: Annotated[float, gauge("feature_mean", "Bad: far from what the feature is known to be.")]
    """The mean of each feature with `scale`, by its latest records."""
    deviation: Annotated[float, gauge("feature_deviation", "Bad: 0; the feature does not vary, and tells nothing.")]
    """The standard deviation of each feature with `scale`, by its latest records."""


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
