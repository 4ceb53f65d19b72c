"""`training.members`: two or three copies of one model, mixed by how good each was of late, as one Keras model.

The member `recent` draws the rows of its later passes from the last few hundred records, the member `since_drift` from
all records since the stream has changed, up to some thousand. Where the loss of the second rises by more than chance,
it begins anew with the weights that it was built with. A third, `once`, learns each record once. What they answer is
averaged; the share of a member shrinks exponentially with its losses of about the last hundred records, each scored
before it was learnt.

As it is one model, whose state is in variables of its own, checkpoints, exports and all else hold it without knowing.
Each member has its own optimizer, and learns as if it were alone. Built where the user's model would be; its methods
with tensors run while a call is traced.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from millrace.training.errors import ModelError
from millrace.training.model.setup.figures import MembersFigures
from millrace.training.model.setup.keras_internals import (
    build,
    compiled_with,
    forget_metrics,
    inputs_of,
    is_plain,
    put_below,
    rate_of,
)

_STATE = "members"
_OTHERS = ("since_drift", "once")
"""The members after the first, whose variables are below these names."""
_SHARPNESS, _DECAY = 0.3, 100.0
"""A share is exp(-0.3 L), where L is the sum of a member's losses, each of which has faded by e after 100 records."""
_BLOCK = 32
"""Losses are compared in blocks of so many records, or of a batch that is larger."""
_FIRST, _MEMORY = 16, 128
"""Mean and spread are learnt of so many blocks before a rise is looked for, and are those of about the last 128."""
_TOLERATED, _FURTHEST, _CHANGE = 0.75, 8.0, 11.0
"""In standard errors of a block: what is no rise yet, how far above counts at most, and the sum that is a change."""
_WIDEST = 16.0
"""The square of what a block adds to the spread at most, in standard errors."""
_LEAST = 1e-6
"""The least spread of a record's loss, of the mean: where all losses are the same, rounding is no change."""
_LARGEST = 1e15
"""More than any loss of a record counts, so that its square is a number."""
_FEWEST, _MOST = 64, 1000
"""How many records a member begins anew with: those since the loss has begun to rise, within these bounds."""


class MixedModel(keras.Model):  # type: ignore[misc]  # to mypy Keras' classes are Any
    """The members, and the state by which they are mixed. Build it inside the strategy's scope."""

    def __init__(self, members: Sequence[Any], recent: int, since_drift: int) -> None:
        """`members` are two or three compiled models, built by the same code."""
        first, second, *third = members
        state = _MemberState(len(members))
        mixing = [_Mixed(state, name) for name in getattr(first, "output_names", None) or ["output"]]
        inputs = inputs_of(first)
        super().__init__(inputs, _mixed(mixing, [member(inputs) for member in members]))
        self.members, self._mixing, self._state = list(members), mixing, state
        self._recent, self._since_drift = recent, since_drift
        for name, member in zip(_OTHERS, members[1:], strict=False):
            for variable in member.variables:
                put_below(variable, name)
        for member in members:
            member.optimizer.build(member.trainable_variables)
        self.since_drift_optimizer = second.optimizer
        if third:
            self.once_optimizer = third[0].optimizer
        # Variables, because another process might draw other numbers from the same seed.
        fresh = [(one, state.held(one, f"fresh_{at}")) for at, one in enumerate(_weights(second))]
        slots = [(one, np.asarray(one).flat[0]) for one in second.optimizer.variables]
        rate = rate_of(second.optimizer)

        def begin_anew() -> None:
            for weight, held in fresh:
                _assign(weight, _read(held))
            for slot, value in slots:
                if slot is not rate:
                    _assign(slot, tf.fill(slot.shape, tf.constant(value, slot.dtype)))

        # In functions, as Keras would count what an attribute holds among the model's own variables.
        self._begin_anew = begin_anew
        self._fresh: Callable[[], list[Any]] = lambda: [held for _, held in fresh]
        self.compile(**compiled_with(first))
        for member in members:
            forget_metrics(member)

    @classmethod
    def of(cls, build: Callable[[], Any], recent: int, since_drift: int, *, once: bool = False) -> Any:
        """Build the members; return what is no compiled model as it is, to be refused as it would be without them.

        With `once` there is a third one, which takes part in the first pass alone.
        """
        members = [build() for _ in range(2 + once)]
        for model in members:
            if getattr(model, "optimizer", None) is None:
                return model
            if not is_plain(model):
                raise ModelError(
                    f"training.members: it takes a functional or Sequential model that begins with keras.Input, and "
                    f"model.build returned {type(model).__name__}; build it so, or leave members out"
                )
            if any(not tf.as_dtype(output.dtype).is_floating for output in model.outputs):
                raise ModelError("training.members: an output of the model is no float, and has no mean; leave it out")
        return cls(members, recent, since_drift)

    def begin_with(self, number: int) -> None:
        """Give all members the weights of one, also for each time that the second begins anew."""
        given = [np.array(_read(one)) for one in _weights(self.members[number])]
        for variables in (*map(_weights, self.members), self._fresh()):
            for variable, value in zip(variables, given, strict=True):
                variable.assign(value)

    def figures(self) -> MembersFigures:
        """Return how the members are mixed just now."""
        shares = [*map(float, self._state.shares()), 0.0]
        return MembersFigures(
            since_drift_share=shares[1],
            once_share=shares[2],
            since_drift_records=int(_read(self._state.young)),
            restarts=int(_read(self._state.restarts)),
        )

    @property
    def metrics_variables(self) -> list[Any]:
        """What the members' losses keep for themselves, too."""
        return [*super().metrics_variables, *(one for each in self.members for one in each.metrics_variables)]

    def _aggregate_additional_loss(self, loss: Any) -> Any:
        # The layers of all members add theirs.
        return super()._aggregate_additional_loss(loss) / len(self.members)

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        for member in self.members:
            build(member, *data_batch)
        super()._symbolic_build(iterator, data_batch)

    # In a step, on a replica.

    def train_step(self, data: Any) -> dict[str, Any]:
        """Have each member learn the same rows."""
        for member in self.members:
            learn(member, data)
        return {}

    @property
    def steps(self) -> list[Callable[[Any], Any]]:
        """What learns the rows of a later pass, by member."""
        return [partial(learn, member) for member in self.members[:2]]

    def scored(self, x: Any, y: Any, w: Any, corrected: Callable[[Any], Any]) -> Any:
        """Return the answers as they are in use; the losses of the members, which have not learnt the rows, too."""
        answers = [member(x, training=False) for member in self.members]
        mixed = corrected(_mixed(self._mixing, answers))
        self.compute_loss(x=x, y=y, y_pred=mixed, sample_weight=w, training=False)
        for member, answer in zip(self.members, answers, strict=True):
            member.compute_loss(x=x, y=y, y_pred=corrected(answer), sample_weight=w, training=False)
        return mixed

    # Once a batch, outside of replicas.

    def note(self, losses: Any, here: Any) -> Any:
        """Take in each member's sum of the losses of a batch, and how many rows it has; begin anew at a drift.

        Return of how many of the last records the members draw the rows of their later passes.
        """
        here = tf.cast(here, tf.float32)
        losses = tf.clip_by_value(losses, -_LARGEST, _LARGEST)
        faded = _read(self._state.faded) * tf.exp(-here / _DECAY) + losses
        drifted, young, rise = self._state.after(losses[1], here)
        young = tf.minimum(young, float(self._since_drift))
        _assign(self._state.faded, faded)
        _assign(self._state.rise, rise)
        _assign(self._state.young, young)
        _assign(self._state.restarts, _read(self._state.restarts) + tf.cast(drifted, tf.float32))

        def begin_anew() -> Any:
            self._begin_anew()
            return drifted

        tf.cond(drifted, begin_anew, lambda: drifted)
        return tf.stack([tf.constant(self._recent, tf.int64), tf.cast(young, tf.int64)])


class _MemberState(keras.layers.Layer):  # type: ignore[misc]  # as above
    """The variables by which members are mixed and a drift is found."""

    def __init__(self, members: int) -> None:
        super().__init__(name=_STATE, dtype="float32", autocast=False)
        weight = partial(self.add_weight, initializer="zeros", trainable=False)
        self.faded = weight(shape=(members,), name="losses")
        """By member: the faded sum of its losses."""
        self.young = weight(shape=(), name="young")
        """How many records the second member may draw from."""
        self.restarts = weight(shape=(), name="restarts")
        self.rise = weight(shape=(7,), name="rise")
        """Records and loss of the block that is not whole; how many blocks were taken in, and the mean and variance of
        a record's loss that they tell; the sum of what exceeded it, and how many records ago that was 0."""
        self.built = True

    def held(self, variable: Any, name: str) -> Any:
        """Return a variable that holds the present value of another."""
        held = self.add_weight(
            shape=variable.shape, dtype=variable.dtype, initializer="zeros", trainable=False, name=name
        )
        held.assign(np.asarray(variable))
        return held

    def shares(self) -> Any:
        return tf.nn.softmax(-_SHARPNESS * tf.convert_to_tensor(self.faded))

    def after(self, loss: Any, here: Any) -> tuple[Any, Any, Any]:
        """Return whether the loss has risen by more than chance with these records, `young` and `rise` after them.

        A block is made of whole batches.
        """
        records, total, blocks, mean, variance, risen, since = tf.unstack(_read(self.rise))
        records, total, since, young = records + here, total + loss, since + here, _read(self.young) + here
        whole, at = records >= _BLOCK, total / tf.maximum(records, 1.0)
        error = tf.maximum(tf.sqrt(variance), _LEAST * tf.abs(mean)) / math.sqrt(_BLOCK)
        above = tf.minimum((at - mean) / tf.maximum(error, 1e-30), _FURTHEST)
        summed = tf.maximum(risen + (above - _TOLERATED) * records / _BLOCK, 0.0)
        summed = tf.where(blocks >= _FIRST, summed, 0.0)
        drifted = tf.logical_and(whole, summed > _CHANGE)

        blocks = tf.minimum(blocks + 1.0, float(_MEMORY))
        share, apart = 1.0 / blocks, at - mean
        # So that a block that is far off makes no one blind to the next.
        most = tf.where(blocks < _FIRST, math.inf, _WIDEST * variance)
        varied = (1.0 - share) * (variance + share * tf.minimum(records * apart * apart, most))
        since_rise = tf.where(summed > 0.0, since, 0.0)
        after = tf.stack([0.0, 0.0, blocks, mean + share * apart, varied, summed, since_rise])

        unlearnt = tf.tensor_scatter_nd_update(_read(self.rise), [[0], [1], [6]], tf.stack([records, total, since]))
        rise = tf.where(drifted, tf.zeros(7), tf.where(whole, after, unlearnt))
        young = tf.where(drifted, tf.clip_by_value(since, _FEWEST, _MOST), young)
        return drifted, young, rise


class _Mixed(keras.layers.Layer):  # type: ignore[misc]  # as above
    """The mean of one output of the members, each with its share."""

    def __init__(self, state: _MemberState, name: str) -> None:
        super().__init__(name=name, dtype="float32", autocast=False)
        self._state = state

    def call(self, answers: Sequence[Any]) -> Any:
        shares = tf.unstack(tf.cast(self._state.shares(), answers[0].dtype))
        return tf.add_n([share * answer for share, answer in zip(shares, answers, strict=True)])


def members_of(model: Any) -> Sequence[Any]:
    """Return the members of a mixture; none of another model."""
    return model.members if isinstance(model, MixedModel) else ()


def of_mixture(names: Iterable[str]) -> bool:
    """Return whether variables of these names are those of a mixture."""
    return any(_STATE in name.split("/") for name in names)


def learn(member: Any, data: Any) -> None:
    """Have a member learn some rows, as Keras' own step does."""
    x, y, w = keras.utils.unpack_x_y_sample_weight(data)
    weights = member.trainable_variables
    with tf.GradientTape() as tape:
        answers = member(x, training=True)
        loss = member.compute_loss(x=x, y=y, y_pred=answers, sample_weight=w, training=True)
    member.optimizer.apply(tape.gradient(loss, weights), weights)


def _mixed(mixing: Iterable[_Mixed], answers: Sequence[Any]) -> Any:
    columns = zip(*map(keras.tree.flatten, answers), strict=True)
    mixed = [layer(list(column)) for layer, column in zip(mixing, columns, strict=True)]
    return keras.tree.pack_sequence_as(answers[0], mixed)


def _weights(member: Any) -> list[Any]:
    """Return what a member begins anew with: all but the states of random generators."""
    return [one for one in member.variables if tf.as_dtype(one.dtype).is_floating]


def _copies(variable: Any) -> Sequence[Any]:
    """Return the TensorFlow variables behind one of Keras, one a replica."""
    return tuple(getattr(variable.value, "values", (variable.value,)))


def _read(variable: Any) -> Any:
    """Return the present value, which is the same on all replicas."""
    return _copies(variable)[0].read_value()


def _assign(variable: Any, value: Any) -> None:
    for copy in _copies(variable):
        copy.assign(value)
