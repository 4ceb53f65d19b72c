"""The balance of classes: the settings, and resampling. Records of classes that come too often are left out.

A class sampler keeps, of each class, as many records as bring the classes to the shares that they are to have. Whether
a record is kept depends on its topic, partition and offset by a hash, and on how often each class came before, in the
partition. The rates change only between cells of offsets, so they do not depend on how records are cut. What is kept
weighs as much more as is left out of its class: so all that is summed by weight is of the stream as it is.

Owns the samplers of all partitions, as followed states, and their form in a checkpoint. Records are left out on the
generator's thread; all else is for the trainer's.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, field_validator
from pydantic import Field as Setting

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Count
from millrace.pipelines.schema import PRESENT, Column, Field, Schema
from millrace.pipelines.shaping.followed_states import FollowedShaper, Taken
from millrace.pipelines.shaping.options import LABEL, PRIOR, number_of
from millrace.pipelines.shaping.shaper import ShapingSection
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.offset_mix import drawn, salt_of
from millrace.pipelines.stream.slices import Skipped, only

NAME = "resampling"
LEFT_OUT = "balance"
"""The setting under which the account counts what is left out."""
CLASS = "class"
"""The column of a record's class: its place among the classes, or their number for any other."""
CELL = 1024
"""So many offsets have the same rates."""

Mask = npt.NDArray[np.bool_]


def _by_class(value: Any) -> Any:
    """Spell classes as text; YAML reads 0 and true as they are."""
    if not isinstance(value, Mapping):
        return value
    return {str(int(one) if isinstance(one, bool) else one): share for one, share in value.items()}


class BalanceSettings(ShapingSection):
    """How much each class counts in the learning."""

    by: str = Setting(
        LABEL,
        min_length=1,
        description="The field that holds the class: label, or the name of one of several labels or of a feature, with "
        "its value as the model gets it.",
    )
    target: Annotated[Mapping[str, float], BeforeValidator(_by_class)] = Setting(
        {},
        description="The share that each class should have in the learning; the shares add up to 1. Records of other "
        "classes keep their weight. Empty: each class counts as often as it comes.",
        examples=[{"0": 0.5, "1": 0.5}],
    )
    how: Literal["weight", "resample"] = Setting(
        "weight",
        description="weight: every record is learnt, and its update is multiplied by the target share of its class "
        "divided by the share of the class on the stream. resample: records of classes that come too often "
        "are left out, which is faster, and all learnt records weigh about the same.",
    )
    half_life: Count = Setting(
        100_000,
        ge=100,
        description="The measured shares follow the stream: after this many further records, a record counts half as "
        "much.",
    )

    @field_validator("target")
    @classmethod
    def _shares(cls, target: Mapping[str, float]) -> Mapping[str, float]:
        if not target:
            return target
        if len(target) < 2 or min(target.values()) <= 0 or abs(sum(target.values()) - 1) > 1e-6:
            raise ValueError(
                f"{dict(target)} are no shares of at least two classes that add up to 1; write as {{0: 0.5, 1: 0.5}}"
            )
        return target

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        return bool(self.target)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, as text; numbers by size."""
        return tuple(sorted(self.target, key=lambda one: (number_of(one), one)))

    def for_rows(self, schema: Schema) -> "BalanceSettings | None":
        """Return how the classes of such rows are balanced; None if they count as they come."""
        if not self.used:
            return None
        # Where there is one label, the model is given it without its name.
        return self.model_copy(update={"by": LABEL}) if [self.by] == [one.name for one in schema.labels] else self

    def shaper(self, schema: Schema) -> "ResampleShaper | None":
        """Return what shapes such rows; ConfigError if the settings do not fit them."""
        balance = self.for_rows(schema)
        return None if balance is None or balance.how == "weight" else ResampleShaper(balance, schema)


class Sample(NamedTuple):
    """Which records are kept."""

    kept: Mask
    weights: npt.NDArray[np.float32]
    """Of each record that is kept, by what its weight is multiplied. They average to 1."""


class ClassSampler:
    """How often each class came in a partition."""

    def __init__(self, options: BalanceSettings) -> None:
        self._options = options
        self._target = np.array([options.target[one] for one in options.classes])
        self.counts = np.zeros(len(self._target))
        """Of the cells before, decayed."""
        self.cell = -1
        self.seen = np.zeros(len(self._target), np.int64)
        """Of the present cell so far."""

    def take(self, taken: Taken) -> None:
        """Count records that follow those before."""
        for _, classes in self._cells(taken):
            self._count(classes)

    def sample(self, taken: Taken, salt: int) -> Sample:
        """Decide about records that follow those before, and count them."""
        rates, weights = np.empty(len(taken)), np.empty(len(taken))
        for here, classes in self._cells(taken):
            # The last one is that of other classes: they count as they come.
            shares = (self.counts + PRIOR * self._target) / (self.counts.sum() + PRIOR)
            balanced = np.append(self._target / shares, 1.0)
            rates[here] = (balanced / balanced.max())[classes]
            weights[here] = (1 / balanced)[classes]
            self._count(classes)
        kept = drawn(taken.offsets, salt) < rates
        return Sample(kept, weights[kept].astype(np.float32))

    def copy(self) -> "ClassSampler":
        """Return a copy that shares nothing that changes."""
        copied = ClassSampler(self._options)
        copied.counts, copied.cell, copied.seen = self.counts.copy(), self.cell, self.seen.copy()
        return copied

    def facts(self) -> dict[str, Any]:
        """Return the counts; JSON holds a float64 to the bit."""
        return {"cell": self.cell, "counts": self.counts.tolist(), "seen": self.seen.tolist()}

    def fill(self, facts: Any) -> None:
        """Take over what `facts` has returned."""
        self.cell = int(facts["cell"])
        self.counts = np.array(facts["counts"], np.float64)
        self.seen = np.array(facts["seen"], np.int64)

    def _cells(self, taken: Taken) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield the records of each cell, which is the present one meanwhile."""
        cells = taken.offsets // CELL
        ends = [*(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
        first = 0
        for end in ends if len(cells) else ():
            if (cell := int(cells[first])) != self.cell:
                self.counts = self.counts * 2.0 ** (-int(self.seen.sum()) / self._options.half_life) + self.seen
                self.seen = np.zeros_like(self.seen)
                self.cell = cell
            yield slice(first, end), taken.columns[CLASS][first:end]
            first = end

    def _count(self, classes: npt.NDArray[Any]) -> None:
        self.seen = self.seen + np.bincount(classes, minlength=len(self.seen) + 1)[: len(self.seen)]


class ResampleShaper(FollowedShaper[ClassSampler]):
    """Leaves records out by how often each class came, which is followed as blocks are settled."""

    name = NAME
    setting = "balance.how: resample"

    def __init__(self, options: BalanceSettings, schema: Schema) -> None:
        """Take the classes from rows of this schema; ConfigError where it has none."""
        super().__init__(lambda: ClassSampler(options))
        self._options = options
        self._column, self._of_label = class_field(schema, options)

    def made(self, decoded: Decoded, state: ClassSampler) -> tuple[Decoded, list[Skipped], Taken]:
        """Return the chunk with the rows that are kept, and the records that are left out."""
        columns = decoded.labels if self._of_label else decoded.features
        classes = class_places(columns[self._column.name], self._options)
        if self._of_label and self._column.masked:
            # A record without the label is of no class, and counts as it comes.
            classes = np.where(columns[self._column.name + PRESENT], classes, len(self._options.classes))
        taken = Taken(decoded.end, decoded.offsets, {CLASS: classes})
        kept, weights = state.sample(taken, salt_of(str(decoded.partition)))
        rows = only(decoded, np.flatnonzero(kept))
        weights = weights if rows.weights is None else (rows.weights * weights).astype(np.float32)
        left_out = [(int(offset), LEFT_OUT) for offset in decoded.offsets[~kept]]
        return replace(rows, weights=weights), left_out, taken

    def depends_on(self) -> dict[str, Any]:
        """Return what the counts are of; those of anything else say nothing."""
        return {"field": self._column.name, "classes": list(self._options.classes)}

    def written(self, state: ClassSampler) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return the counts of a partition."""
        return {}, state.facts()

    def read(self, state: ClassSampler, facts: Mapping[str, Any], column: object) -> None:
        """Take over the counts of a partition."""
        del column
        state.fill(facts)

    def begins_anew(self, *, others: bool) -> str:
        """Say that counting begins anew."""
        return f"balance: the checkpoint counts {'other' if others else 'no'} classes, so counting starts again"


def class_places(column: Column, options: BalanceSettings) -> npt.NDArray[np.int64]:
    """Return the place of each record's class, or the number of classes for any other."""
    classes, rows = options.classes, len(column)
    if column.ndim > 1 and column.shape[1] == len(classes) > 1:
        return np.where(column.any(axis=1), column.argmax(axis=1), len(classes))
    column = column.reshape(rows)
    places = np.full(rows, len(classes), np.int64)
    for place, one in enumerate(classes):
        wanted: Any = one.encode() if column.dtype == object else number_of(one)
        places[column == wanted] = place
    return places


def class_field(schema: Schema, options: BalanceSettings) -> tuple[Field, bool]:
    """Return the field that holds the class, and whether it is a label.

    Raise ConfigError where there is no such field, it is not one value a record, or it cannot have such values.
    """
    labels = {field.name: field for field in schema.labels}
    if options.by == LABEL and len(labels) == 1:
        [(_, field)] = labels.items()
    else:
        found = labels.get(options.by) or {field.name: field for field in schema.features}.get(options.by)
        if found is None:
            raise ConfigError(f"balance.by: {options.by} is neither a label nor a feature, and how: resample needs one")
        field = found
    one_hot = field.shape == (len(options.classes),) and field.dtype != "string"
    if field.shape not in {(), (1,)} and not one_hot:
        raise ConfigError(f"balance.by: {options.by} has the shape {field.shape}, and a class is one value a record")
    # As `class_weights` has it: a place in the vector is a class.
    if one_hot and [*map(number_of, options.classes)] != [*range(len(options.classes))]:
        raise ConfigError(f"balance.target: the labels are one-hot: name the classes 0 to {len(options.classes) - 1}")
    unlike = [one for one in options.classes if math.isinf(number_of(one))]
    if field.dtype != "string" and unlike:
        raise ConfigError(f"balance.target: {field.name} holds numbers, and {unlike[0]!r} is none")
    return field, field in schema.labels
