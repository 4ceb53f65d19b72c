"""Resampling: records of classes that come too often are left out, and the others stand for them by their weight.

Owns the samplers of all partitions, as followed states, and their form in a checkpoint. Records are left out on the
generator's thread; all else is for the trainer's.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Column, Field, Schema
from millrace.pipelines.shaping.balance.class_sampler import CLASS, ClassSampler, salt_of
from millrace.pipelines.shaping.followed_states import FollowedStates, Leading, Taken
from millrace.pipelines.shaping.options import LABEL, BalanceOptions, number_of
from millrace.pipelines.stream.blocks import BlockFacts
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped, only

log = logging.getLogger(__name__)
NAME = "resampling"
LEFT_OUT = "balance"
"""The setting under which the account counts what is left out."""


class Resampler:
    """Leaves records of one incarnation out."""

    def __init__(self, states: "ResampleStates", leading: Leading[ClassSampler]) -> None:
        self._states, self._leading = states, leading

    def shape(self, decoded: Decoded) -> tuple[Decoded, list[Skipped]]:
        """Return the chunk with the rows that are kept, and the records that are left out."""
        taken = self._states.taken_of(decoded)
        state = self._leading.state(decoded.partition, decoded.start)
        kept, weights = state.sample(taken, salt_of(decoded.partition))
        self._leading.took(decoded.partition, taken)
        rows = only(decoded, np.flatnonzero(kept))
        weights = weights if rows.weights is None else (rows.weights * weights).astype(np.float32)
        return replace(rows, weights=weights), [(int(offset), LEFT_OUT) for offset in decoded.offsets[~kept]]


class ResampleStates:
    """How often each class came, followed as blocks are settled: a part of every checkpoint."""

    name = NAME

    def __init__(self, options: BalanceOptions, schema: Schema) -> None:
        """Take the classes from rows of this schema; ConfigError where it has none."""
        self._options = options
        self._column, self._of_label = class_field(schema, options)
        self._followed = FollowedStates(lambda: ClassSampler(options))

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> Resampler:
        """Begin an incarnation at what is settled; `at_once` settles records as they are shaped."""
        return Resampler(self, self._followed.open(incarnation, positions, at_once=at_once))

    def settle(self, facts: BlockFacts) -> None:
        """Follow a block whose records are settled."""
        self._followed.settle(facts)

    def forget(self, partition: Partition) -> None:
        """Forget a partition: its topic was created again."""
        self._followed.forget(partition)

    def taken_of(self, decoded: Decoded) -> Taken:
        """Return the classes of the records of a chunk."""
        columns = decoded.labels if self._of_label else decoded.features
        classes = class_places(columns[self._column.name], self._options)
        return Taken(decoded.end, decoded.offsets, {CLASS: classes})

    def saved(self) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return the counts at what is settled."""
        with self._followed.at_settled() as states:
            partitions = {
                str(partition): {"position": one.position, **one.state.facts()}
                for partition, one in sorted(states.items())
            }
        return {}, {**self._counted(), "partitions": partitions}

    def load(self, arrays: Mapping[str, Column], facts: Mapping[str, Any]) -> None:
        """Take over what `saved` has returned; where other classes were counted, or none, begin anew."""
        del arrays
        states = dict[Partition, tuple[int, ClassSampler]]()
        if facts and {name: facts[name] for name in self._counted()} == self._counted():
            for text, about in facts["partitions"].items():
                state = ClassSampler(self._options)
                state.fill(about)
                states[Partition.parse(text)] = (int(about["position"]), state)
        else:
            log.warning(
                "balance: the checkpoint counts %s classes, so counting begins anew", "other" if facts else "no"
            )
        self._followed.replace(states)

    def _counted(self) -> dict[str, Any]:
        """Return what the counts are of; those of anything else say nothing."""
        return {"field": self._column.name, "classes": list(self._options.classes)}


def class_places(column: Column, options: BalanceOptions) -> npt.NDArray[np.int64]:
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


def class_field(schema: Schema, options: BalanceOptions) -> tuple[Field, bool]:
    """Return the field that holds the class, and whether it is a label.

    Raise ConfigError where there is no such field, it is not one value a record, or it cannot have such values.
    """
    labels = {field.name: field for field in schema.labels}
    if options.by == LABEL and len(labels) == 1:
        [(_, field)] = labels.items()
    else:
        found = labels.get(options.by) or {field.name: field for field in schema.features}.get(options.by)
        if found is None:
            raise ConfigError(
                f"balance.by: {options.by} is neither a label nor a feature, of which how: resample needs one"
            )
        field = found
    if field.shape not in {(), (1,), (len(options.classes),)}:
        raise ConfigError(f"balance.by: {options.by} has the shape {field.shape}, and a class is one value a record")
    unlike = [one for one in options.classes if math.isinf(number_of(one))]
    if field.dtype != "string" and unlike:
        raise ConfigError(f"balance.target: {field.name} holds numbers, and {unlike[0]!r} is none")
    return field, field in schema.labels
