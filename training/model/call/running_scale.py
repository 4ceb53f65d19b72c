"""The running scale: features that the model is given less their mean, over their spread, as both follow the stream.

A batch is scaled by the statistics of the batches before it, never by its own, so that its rows do not mix and are
scored as they would be in use. Half of their weight is gone after `HALF_LIFE` records, so that they follow a stream
that grows. They are kept in float64 and merged by Welford's formulas, which do not cancel where a mean is large beside
its spread, as that of a time is. Before there are any, and of a feature that has not varied, the model is given zeros.

Owns the statistics, a mirrored variable and a part of every checkpoint. It moves in the call with the weights, batch by
batch, and only where a batch was applied; all else of the call sees scaled rows, the reservoir too. The methods with
tensors run while the call is traced.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.figures import ScaledFigures
from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.model.call.replica_sums import summed_by_workers
from millrace.training.model.variables import assign, copies, read

log = logging.getLogger(__name__)
NAME = "running_scale"
HALF_LIFE = 1000
"""Records."""
_FARTHEST = 10.0
"""What is farther from the mean is given to the model as if it were so many standard deviations away."""
_FARTHEST_COUNTED = 30.0
"""What is farther moves the statistics as if it were so many away: one absurd value must not end the learning."""
_LARGEST = 1e150
"""A larger number's square would be infinite."""
_LEAST_SPREAD = 1e-12
"""Below this share of the mean a deviation is rounding."""


_LEAST = 1e-30
"""What a smaller deviation is divided into would be infinite in float32."""
_STATISTICS = ("count", "mean", "squares")
"""Of each element, as a checkpoint names them: the decayed number of values, their mean, their squared distances."""


class ScalePlan(NamedTuple):
    """What the batches of a call are scaled by, and what they add; tensors [k, …] of all elements of all features."""

    mean: Any
    factor: Any
    moments: Any
    """By batch: how many values, their mean, and the sum of their squared distances from it."""
    after: Any
    """The statistics after each batch."""


class RunningScale:
    """The statistics of the scaled features; without any it does nothing. Build it inside the strategy's scope."""

    name = NAME

    def __init__(self, schema: Schema, rows: Rows) -> None:
        """`rows` are a block as the call gets them, for the shapes, and for a scale where a model is only tried."""
        self.fields = scaled_fields(schema)
        self._sizes = [*map(_size, self.fields)]
        for field in self.fields:
            _require_kept(field, rows.features)
        self.variables: list[Any] = []
        """One, with `_STATISTICS` of all elements, or none: the members of a group cannot share an empty one."""
        self.assumed: tuple[Array, Array] | None = None
        """Mean and factor where a model is only tried and there are no statistics."""
        if self.fields:
            statistics = tf.Variable(
                np.zeros((3, sum(self._sizes))),
                dtype=tf.float64,
                trainable=False,
                name="running_scale",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            self.variables.append(statistics)
            values, counted = (one.numpy() for one in self._values(rows.features))
            count = np.maximum(counted.sum(0), 1)
            mean = np.where(counted, values, 0.0).sum(0) / count
            deviation = np.sqrt((np.where(counted, values - mean, 0.0) ** 2).sum(0) / count)
            self.assumed = mean, 1 / np.where(deviation > 0, deviation, 1.0)

    def begin_as(self, other: "RunningScale") -> None:
        """Take over the statistics of another model's scale, and what it assumes where there are none."""
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            assign(mine, np.asarray(read(theirs)))
        self.assumed = other.assumed

    def plan(self, rows: Rows, strategy: Any, *, live: Any) -> ScalePlan | None:
        """Return what the batches of a call are scaled by; where they are not `live`, they count as nothing."""
        if not self.fields:
            return None
        statistics = self._statistics()
        moments, after = self._followed(rows, statistics, strategy, tf.cast(live, tf.float64))
        before = _before(statistics, after)
        mean, factor = constants(before[:, 0], before[:, 1], before[:, 2])
        return ScalePlan(*self._or_assumed(mean, factor, before[:, 0], live), moments, after)

    def scaled(self, features: Mapping[str, Any], plan: ScalePlan | None) -> dict[str, Any]:
        """Return the features [k, B, …] as the model is given them."""
        return dict(features) if plan is None else self._apply(features, plan.mean, plan.factor)

    def count(self, plan: ScalePlan | None, applied: Any) -> None:
        """Take in the batches that were applied; in a graph, outside of replicas."""
        if plan is None:
            return

        def without_the_others() -> Any:
            moments = tf.where(applied[:, tf.newaxis, tf.newaxis], plan.moments, tf.zeros_like(plan.moments))
            return tf.scan(_merged, moments, initializer=self._statistics())[-1]

        statistics = tf.cond(tf.reduce_all(applied), lambda: plan.after[-1], without_the_others)
        for copy in copies(self.variables[0]):
            copy.assign(statistics)

    def as_it_stands(self, features: Mapping[str, Any], *, tried: bool = False) -> dict[str, Any]:
        """Return the features [k, B, …] scaled by the present statistics; `tried` only to examine the model."""
        if not self.fields:
            return dict(features)
        count, mean, squares = (row[tf.newaxis] for row in tf.unstack(self._statistics()))
        return self._apply(features, *self._or_assumed(*constants(count, mean, squares), count, not tried))

    def figures(self) -> dict[str, ScaledFigures]:
        """Return the mean and the standard deviation of each feature of one value, as they stand."""
        count, mean, squares = np.asarray(read(self.variables[0]))
        deviation = np.sqrt(squares / np.maximum(count, 1e-300))
        starts = np.cumsum([0, *self._sizes])
        return {
            field.name: ScaledFigures(float(mean[at]), float(deviation[at]))
            for field, at in zip(self.fields, starts.tolist(), strict=False)
            if field.scaled == ()
        }

    def snapshot(self) -> PartState:
        """Copy the statistics, by feature; JSON holds a float64 to the bit."""
        parts = np.split(np.asarray(read(self.variables[0])), np.cumsum(self._sizes)[:-1], axis=1)
        facts = (dict(zip(_STATISTICS, part.tolist(), strict=True)) for part in parts)
        return PartState(facts=dict(zip((field.name for field in self.fields), facts, strict=True)))

    def restore(self, state: PartState) -> None:
        """Take the statistics back; those of a feature that the checkpoint does not know begin anew."""
        unknown = sorted({field.name for field in self.fields} - state.facts.keys())
        if unknown:
            log.warning(
                "records.features.%s.scale: the checkpoint holds no statistics of it, so they begin with the next "
                "records",
                unknown[0],
            )
        for field in self.fields:
            held = len(state.facts.get(field.name, {}).get(_STATISTICS[0], ()))
            if held and held != _size(field):
                log.warning(
                    "records.features.%s.scale: the checkpoint's statistics are of %d values and the feature has %d, "
                    "so they begin with the next records",
                    field.name,
                    held,
                    _size(field),
                )
        for variable in self.variables:
            assign(variable, _statistics_of(self.fields, state))

    def _statistics(self) -> Any:
        return copies(self.variables[0])[0].read_value()

    def _values(self, features: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the values of all elements [n, F], of a sequence those of the newest record; and which count."""
        values, counted = [], []
        for field in self.fields:
            column = features[field.name]
            if len(field.shape) > len(field.scaled or ()):
                column = column[:, :, -1]
            flat = tf.reshape(column, [-1, _size(field)])
            is_real = tf.math.is_finite(flat)
            if field.missing is not None:
                # What stands for a missing value says nothing of the others.
                is_real = tf.logical_and(is_real, flat != tf.constant(field.missing, flat.dtype))
            values.append(tf.cast(flat, tf.float64))
            counted.append(is_real)
        return tf.concat(values, 1), tf.concat(counted, 1)

    def _followed(self, rows: Rows, statistics: Any, strategy: Any, live: Any) -> tuple[Any, Any]:
        """Return the moments of each batch [k, 3, F], bounded by what was before it, and the statistics after it."""
        values, counted = self._values(rows.features)
        shape = tf.stack([tf.shape(rows.offsets)[0], rows.offsets.shape[1], sum(self._sizes)])
        present = tf.reshape(rows.offsets >= 0, [-1, 1])
        values, counted = tf.reshape(values, shape), tf.reshape(tf.logical_and(counted, present), shape)

        def in_turn() -> tuple[Any, Any]:
            def next_batch(so_far: tuple[Any, Any], batch: tuple[Any, Any]) -> tuple[Any, Any]:
                (here, which), (least, most) = batch, _bounds(so_far[1])
                moments = live * _moments(tf.clip_by_value(here, least, most), which, strategy)
                return moments, _merged(so_far[1], moments)

            found: tuple[Any, Any] = tf.scan(
                next_batch, (values, counted), initializer=(tf.zeros_like(statistics), statistics)
            )
            return found

        # Without a value that is too far, which is most often, no batch need wait for the one before.
        moments = live * _moments(values, counted, strategy)
        after = tf.scan(_merged, moments, initializer=statistics)
        least, most = (bound[:, tf.newaxis] for bound in _bounds(_before(statistics, after)))
        within = tf.logical_and(values >= least, values <= most)
        far = tf.reduce_any(tf.logical_and(counted, tf.logical_not(within)))
        far = summed_by_workers(strategy, tf.cast(far, tf.float64)) > 0
        followed: tuple[Any, Any] = tf.cond(far, in_turn, lambda: (moments, after))
        return followed

    def _or_assumed(self, mean: Any, factor: Any, count: Any, live: Any) -> tuple[Any, Any]:
        """Return the constants, or assumed ones where a model is tried that has no statistics yet."""
        assert self.assumed is not None
        known = tf.logical_or(count > 0, live)
        return tf.where(known, mean, self.assumed[0]), tf.where(known, factor, self.assumed[1])

    def _apply(self, features: Mapping[str, Any], mean: Any, factor: Any) -> dict[str, Any]:
        """Return the features [k, B, …] scaled by constants [k, F], or [1, F]."""
        columns = dict(features)
        parts = zip(tf.split(mean, self._sizes, 1), tf.split(factor, self._sizes, 1), strict=True)
        for field, both in zip(self.fields, parts, strict=True):
            shape = field.scaled or ()
            steps = [1] * (len(field.shape) - len(shape))
            by = (tf.reshape(one, [-1, 1, *steps, *shape]) for one in both)
            columns[field.name] = _scaled(columns[field.name], *by)
        return columns


def scaled_fields(schema: Schema) -> tuple[Field, ...]:
    """Return the features that are scaled."""
    return tuple(field for field in schema.features if field.scaled is not None)


def _size(field: Field) -> int:
    """Return how many elements are scaled of one record's value."""
    return int(np.prod(field.scaled or (), dtype=np.int64))


def constants(count: Any, mean: Any, squares: Any) -> tuple[Any, Any]:
    """Return what is subtracted, and by what is then multiplied: 0 where no spread was seen."""
    deviation = tf.sqrt(tf.math.divide_no_nan(squares, count))
    varies = deviation > tf.maximum(_LEAST_SPREAD * tf.abs(mean), _LEAST)
    return mean, tf.where(varies, 1.0 / tf.where(varies, deviation, tf.ones_like(deviation)), tf.zeros_like(deviation))


def constants_of(schema: Schema, state: PartState | None) -> dict[str, tuple[Array, Array]]:
    """Return the constants of a checkpoint, mean and factor in the shape of one record's value, by feature.

    A feature that the checkpoint does not know was not scaled for its weights, and has none.
    """
    known = PartState() if state is None else state
    fields = tuple(field for field in scaled_fields(schema) if field.name in known.facts)
    mean, factor = (one.numpy() for one in constants(*tf.constant(_statistics_of(fields, known))))
    ends = np.cumsum([*map(_size, fields)])[:-1]
    parts = zip(fields, np.split(mean, ends), np.split(factor, ends), strict=True) if fields else ()
    return {
        field.name: (one.reshape(field.scaled or ()), other.reshape(field.scaled or ())) for field, one, other in parts
    }


def with_constants(
    preprocess: Callable[..., Any] | None, schema: Schema, state: PartState | None
) -> Callable[..., Any] | None:
    """Return a `preprocess` that scales what it returns as a checkpoint does, for a model that is taken out."""
    by = constants_of(schema, state)
    if not by:
        return preprocess

    def scaled(features: Any, label: Any, weight: Any) -> Any:
        if preprocess is not None:
            features, label, weight = preprocess(features, label, weight)
        return {**features, **{name: _scaled(features[name], *both) for name, both in by.items()}}, label, weight

    return scaled


def _scaled(column: Any, mean: Any, factor: Any) -> Any:
    # In the column's own dtype, as what reads an export may know no float64: what the mean loses, the values lack too.
    column = tf.convert_to_tensor(column)
    scaled = (column - tf.cast(mean, column.dtype)) * tf.cast(factor, column.dtype)
    return tf.clip_by_value(scaled, -_FARTHEST, _FARTHEST)


def _before(statistics: Any, after: Any) -> Any:
    """Return the statistics before each batch [k, 3, F], by those before the first, and after each."""
    return tf.concat([statistics[tf.newaxis], after[:-1]], 0)


def _bounds(statistics: Any) -> tuple[Any, Any]:
    """Return from where to where values count as what they are, by statistics [..., 3, F]."""
    count, mean, squares = tf.unstack(statistics, axis=-2)
    _, factor = constants(count, mean, squares)
    most = tf.where(factor > 0, _FARTHEST_COUNTED / tf.where(factor > 0, factor, 1.0), _LARGEST)
    return mean - most, mean + most


def _moments(values: Any, counted: Any, strategy: Any) -> Any:
    """Return of each batch [..., 3, F] how many values [..., B, F] count, their mean, and their squared distances."""

    def total(each: Any) -> Any:
        return tf.reduce_sum(tf.where(counted, each, tf.zeros_like(each)), axis=-2)

    # Two passes over the values: their squares minus that of their mean would cancel.
    counts, sums = tf.unstack(
        summed_by_workers(strategy, tf.stack([total(tf.ones_like(values)), total(values)], -2)), axis=-2
    )
    means = tf.math.divide_no_nan(sums, counts)
    squared = summed_by_workers(strategy, total((values - means[..., tf.newaxis, :]) ** 2))
    return tf.stack([counts, means, squared], -2)


def _merged(statistics: Any, moments: Any) -> Any:
    """Return the statistics [3, F] with a batch's moments."""
    count, mean, squares = tf.unstack(statistics)
    more, their_mean, their_squares = tf.unstack(moments)
    decay = 0.5 ** (more / HALF_LIFE)
    count *= decay
    total, apart = count + more, their_mean - mean
    mean += apart * tf.math.divide_no_nan(more, total)
    squares = squares * decay + their_squares + apart**2 * tf.math.divide_no_nan(count * more, total)
    return tf.stack([total, mean, squares])


def _statistics_of(fields: Sequence[Field], state: PartState) -> Array:
    """Return the statistics that a checkpoint holds, 0 where it holds none of such a shape."""
    parts = [np.zeros((3, 0))]
    for field in fields:
        size = _size(field)
        about = state.facts.get(field.name, {})
        part = np.array([about[name] for name in _STATISTICS if name in about], np.float64)
        parts.append(part if part.shape == (3, size) else np.zeros((3, size)))
    return np.concatenate(parts, 1)


def _require_kept(field: Field, features: Mapping[str, Any]) -> None:
    """Raise ConfigError where `preprocess` does not return a feature as it was."""
    column = features.get(field.name)
    if column is None:
        raise ConfigError(
            f"records.features.{field.name}.scale: preprocess returns no feature {field.name!r}; have it return "
            "that one, or leave scale out"
        )
    if tuple(column.shape[2:]) != field.shape or not column.dtype.is_floating:
        raise ConfigError(
            f"records.features.{field.name}.scale: preprocess returns it as {column.dtype.name}"
            f"{list(column.shape[2:])}, and it went in as {field.dtype}{list(field.shape)}; keep its shape and a "
            "dtype of float, or leave scale out"
        )
