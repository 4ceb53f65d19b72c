"""The proof on `augment`: its rows fit the model and are finite, and it draws by the seed that it is given alone.

What it drew from a generator of NumPy's, of Python's or of TensorFlow's own would differ after a restart. One traced
function shows TensorFlow's, a second one what was drawn while the first was traced. Runs while the model is examined.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from millrace.pipelines.shaping.augmentation import Augmentation
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.learner import Learner
from millrace.training.model.proof.proof import Finding
from millrace.training.model.setup.autograph import converted

CLAIM = "augment draws by its seed alone and gives finite rows"


def draws_by_seed(learner: Learner) -> list[Finding]:
    """Examine `augment`; no findings where the model has none."""
    augment = learner.options.augment
    if augment is None:
        return []
    rows = learner.rows_of(learner.probe())
    one, other = (tf.function(Augmentation(augment, traced_as=converted(augment)), autograph=False) for _ in range(2))
    first = _values(one, rows, 1)
    if bad := [name for name, column in first.items() if not _finite(column) and _finite(_given(rows)[name])]:
        return [Finding(claim=CLAIM, holds=False, detail=f"{bad[0]} is NaN or infinity where it went in finite")]
    if not all(_same(first, _values(function, rows, 1)) for function in (one, other)):
        text = (
            "the same seed gives something else each time: draw by keras.random or Keras' layers, or take a parameter "
            "`seed` and hand it to tf.random.stateless_… and tf.image.stateless_…"
        )
        return [Finding(claim=CLAIM, holds=False, detail=text)]
    changes = not all(_same(first, _values(one, rows, seed)) for seed in (2, 3))
    return [Finding(claim=CLAIM, holds=True, detail="" if changes else "it draws nothing on the rows at hand")]


def _values(function: Any, rows: Rows, seed: int) -> dict[str, Any]:
    columns = tf.nest.map_structure(lambda column: column[0], (rows.features, rows.labels, rows.weights))
    return _named(*function(*columns, tf.constant([seed, 0], tf.int64)))


def _given(rows: Rows) -> dict[str, Any]:
    return _named(rows.features, rows.labels, rows.weights)


def _named(features: Any, labels: Any, weights: Any) -> dict[str, Any]:
    columns = {f"feature {name!r}": column.numpy() for name, column in features.items()}
    return {**columns, **{f"label {at}": label.numpy() for at, label in enumerate(tf.nest.flatten(labels))}} | {
        "the weight": weights.numpy()
    }


def _finite(column: Any) -> bool:
    return column.dtype.kind != "f" or bool(np.isfinite(column).all())


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(column, other[name]) for name, column in one.items())
