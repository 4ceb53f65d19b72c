"""Whether a row's prediction depends on the other rows of its batch, which that of a record of a stream must not.

A row stays where it is and as it is, and the rows beside it are replaced. Then its prediction is the same, whatever the
scale of its features, unless a layer mixes rows. Some layers do so on some values only, so the rows at hand are split
into calm ones and extreme ones, and both are watched. Runs while the model is examined, and leaves its state as it was.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.training.model.call.compiled_call import first_batch
from millrace.training.model.learner import Learner
from millrace.training.model.probes import Probe
from millrace.training.model.proof.proof_trials import KeptState

_TINY = 1e-5
"""A difference this small beside the largest value of an output is rounding."""
_MOST_CHUNKS = 16
_STRETCH = 1000.0
"""By how much made-up numbers are multiplied where no rule of their field forbids it."""


def mixes_rows(learner: Learner, kept: KeptState, tolerance: float, *, in_use: bool = False) -> bool:
    """Return whether some row's prediction changes with the rows beside it; False where none can be made.

    `in_use` asks of the model as it is exported, and not as it is learnt.
    """
    size, half = learner.options.batch_size, learner.options.batch_size // 2
    beside_calm, beside_extreme = np.arange(size), np.arange(size)
    beside_calm[half:], beside_extreme[:half] = 0, half
    for probe in _probes(learner):
        with suppress(Exception):  # the user's code may raise on made-up rows, and on records that are set aside later
            # A step of the user's own may predict otherwise than Keras' does, such as with frozen statistics.
            training = not in_use and type(learner.model).train_step is keras.Model.train_step
            whole = _predicted(learner, kept, probe, training=training)
            for order, rows in ((beside_calm, slice(half)), (beside_extreme, slice(half, size))):
                other_rows = _predicted(learner, kept, probe.arranged(order), training=training)
                outputs = zip(whole, other_rows, strict=True)
                if any(_differ(one[rows], other[rows], tolerance) for one, other in outputs):
                    return True
    return False


def calmest_first(learner: Learner, probe: Probe) -> npt.NDArray[np.int64]:
    """Return the probe's rows, those that are extreme in some number that the model is given last."""
    size, count = learner.options.batch_size, len(next(iter(probe.features.values())))
    # A batch at a time, as `preprocess` is made for such; it may make the numbers of texts.
    chunks = [np.arange(at, min(at + size, count)) for at in range(0, count, size)][:_MOST_CHUNKS]
    scores = np.zeros(count)
    columns = [_numbers(learner, probe.arranged(np.resize(rows, size)), len(rows)) for rows in chunks]
    for column in (np.concatenate(parts) for parts in zip(*columns, strict=True)):
        apart = np.abs(column - np.median(column, axis=0)).reshape(len(column), -1).max(axis=1, initial=0.0)
        scores[: len(column)] = np.maximum(scores[: len(column)], apart / max(apart.max(), np.finfo(np.float64).tiny))
    return np.argsort(scores, kind="stable")


def _probes(learner: Learner) -> Iterator[Probe]:
    """Yield batches whose first half is calm and whose second half is extreme."""
    probes = learner.probes
    half = learner.options.batch_size // 2
    sources = [Probe(features=sample.features, labels=sample.labels) for sample in probes.samples()]
    for source in sources or [_stretched(learner)]:
        with suppress(Exception):
            order = calmest_first(learner, source)
            calm, extreme = order[: max(1, len(order) // 2)], order[::-1][: max(1, len(order) // 2)]
            yield source.arranged(
                np.concatenate([np.resize(calm, half), np.resize(extreme, learner.options.batch_size - half)])
            )


def _stretched(learner: Learner) -> Probe:
    """Return made-up rows, of which half have large numbers of either sign, within the rules of their fields."""
    probe, size = learner.probe(), learner.options.batch_size
    factors = np.where(np.arange(size) < size // 2, 1.0, _STRETCH * (-1.0) ** np.arange(size))
    free = {
        field.name
        for field in learner.options.schema.features
        if field.numpy_dtype.kind == "f" and (field.min, field.max, field.one_of, field.example) == (None,) * 4
    }
    features = {
        name: (column * factors.reshape(-1, *[1] * (column.ndim - 1))).astype(column.dtype) if name in free else column
        for name, column in probe.features.items()
    }
    return replace(probe, features=features)


def _predicted(learner: Learner, kept: KeptState, probe: Probe, *, training: bool) -> list[Any]:
    """Return the outputs of the model that have a row for each row."""
    model = learner.model
    x, _, _ = first_batch(model, learner.rows_of(probe))
    with kept.undone(), learner.strategy.scope():
        outputs = tf.nest.flatten(model(x, training=training))
    arrays = [np.asarray(tf.cast(output, tf.float64)) for output in outputs if isinstance(output, tf.Tensor)]
    return [array for array in arrays if array.shape[:1] == (learner.options.batch_size,)]


def _differ(one: Any, other: Any, tolerance: float) -> bool:
    finite = np.isfinite(one) & np.isfinite(other)
    floor = _TINY * max(np.abs(one[finite]).max(initial=0.0), np.abs(other[finite]).max(initial=0.0))
    return not np.allclose(one[finite], other[finite], rtol=tolerance, atol=floor)


def _numbers(learner: Learner, probe: Probe, rows: int) -> Sequence[Any]:
    """Return the finite numbers that the model is given for these rows, NaN and infinity as 0."""
    features = tf.nest.flatten(learner.rows_of(probe).features)
    columns = [column for column in features if column.dtype.is_floating or column.dtype.is_integer]
    return [
        np.nan_to_num(np.asarray(tf.cast(column[0][:rows], tf.float64)), posinf=0.0, neginf=0.0) for column in columns
    ]
