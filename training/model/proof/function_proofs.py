"""The proofs on the functions that the model brings: `preprocess`, `augment` and its metrics.

`preprocess` makes each row of its own row alone, and keeps its place. It is mapped over the rows that happen to come
together, absent ones among them; if it looked at a row's neighbours (a mean over the batch, a sort), the model would
learn from them.

`augment` gives rows that fit the model and are finite, and draws by the seed that it is given alone. Whatever it drew
from a generator of NumPy's, of Python's or of TensorFlow's own would differ after a restart. One traced function shows
TensorFlow's, a second one shows the numbers that were drawn while the first was traced.

The states of metrics are sums, so that the states of two calls add up to those of both in one. The live metrics depend
on it: a state covers one call, and the sums over calls are kept outside of Keras. A maximum, a mean or the last value
cannot be added up.

Runs while the model is examined, and leaves its state as it was.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.shaping.augmentation import Augmentation
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.metrics import State
from millrace.training.model.learner import Learner
from millrace.training.model.proof.proof import Finding
from millrace.training.model.proof.proof_trials import KeptState
from millrace.training.model.setup.keras_internals import converted
from millrace.training.model.variables import read

ROW_BY_ROW = "preprocess makes each row of its own row alone"


def repeats_itself(learner: Learner) -> bool:
    """Return whether the same rows give the same result twice; where they do not, no comparison shows anything."""
    probe = learner.probe()
    return not [*_differing(learner.rows_of(probe), learner.rows_of(probe), slice(None))]


def row_by_row(learner: Learner) -> list[Finding]:
    """Examine `preprocess`; no findings where the model has none."""
    size = learner.options.batch_size
    if learner.preprocess is None:
        return []
    if size < 4:
        return [Finding(claim=ROW_BY_ROW, holds=None, detail=f"a batch of {size} is too small to show it")]
    probe = learner.probe()
    half = size // 2
    neighbours: npt.NDArray[np.int64] = np.arange(size)
    neighbours[half:] = 0  # the first half as it is, beside other rows than before
    found = [*_differing(learner.rows_of(probe), learner.rows_of(probe.arranged(neighbours)), slice(half))]
    if not found:
        return [Finding(claim=ROW_BY_ROW, holds=True)]
    text = (
        f"{found[0]} of a row comes out otherwise beside other rows; compute it from the row itself, and leave what "
        "is taken over many rows to a layer of the model"
    )
    return [Finding(claim=ROW_BY_ROW, holds=False, detail=text)]


def _differing(one: Rows, other: Rows, rows: slice) -> Iterator[str]:
    """Yield the names of the columns that differ in these rows."""
    pairs = zip(_columns(one), _columns(other), strict=True)
    for (name, mine), (_, theirs) in pairs:
        if not _same(mine[0][rows], theirs[0][rows]):
            yield name


def _columns(rows: Rows) -> list[tuple[str, Any]]:
    features = [(f"feature {name!r}", column) for name, column in sorted(rows.features.items())]
    labels = [("the label", column) for column in tf.nest.flatten(rows.labels)]
    return [*features, *labels, ("the weight", rows.weights)]


def _same(one: Any, other: Any) -> bool:
    a, b = one.numpy(), other.numpy()
    if a.dtype == object:
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=a.dtype.kind == "f"))


BY_SEED = "augment draws by its seed alone and gives finite rows"


def draws_by_seed(learner: Learner) -> list[Finding]:
    """Examine `augment`; no findings where the model has none."""
    augment = learner.options.augment
    if augment is None:
        return []
    rows = learner.rows_of(learner.probe())
    one, other = (tf.function(Augmentation(augment, traced_as=converted(augment)), autograph=False) for _ in range(2))
    first = _augmented(one, rows, 1)
    given = _named(rows.features, rows.labels, rows.weights)
    if bad := [name for name, column in first.items() if not _finite(column) and _finite(given[name])]:
        return [Finding(claim=BY_SEED, holds=False, detail=f"{bad[0]} is NaN or infinity where it went in finite")]
    if not all(_equal(first, _augmented(function, rows, 1)) for function in (one, other)):
        text = (
            "the same seed gives something else each time: draw by keras.random or Keras' layers, or take a parameter "
            "`seed` and hand it to tf.random.stateless_… and tf.image.stateless_…"
        )
        return [Finding(claim=BY_SEED, holds=False, detail=text)]
    changes = not all(_equal(first, _augmented(one, rows, seed)) for seed in (2, 3))
    return [Finding(claim=BY_SEED, holds=True, detail="" if changes else "it draws nothing on the rows at hand")]


def _augmented(function: Any, rows: Rows, seed: int) -> dict[str, Any]:
    columns = tf.nest.map_structure(lambda column: column[0], (rows.features, rows.labels, rows.weights))
    return _named(*function(*columns, tf.constant([seed, 0], tf.int64)))


def _named(features: Any, labels: Any, weights: Any) -> dict[str, Any]:
    columns = {f"feature {name!r}": column.numpy() for name, column in features.items()}
    return {**columns, **{f"label {at}": label.numpy() for at, label in enumerate(tf.nest.flatten(labels))}} | {
        "the weight": weights.numpy()
    }


def _finite(column: Any) -> bool:
    return column.dtype.kind != "f" or bool(np.isfinite(column).all())


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(column, other[name]) for name, column in one.items())


ADDS_UP = "the metrics' states are sums"
_TOLERANCE = 0.01
"""Relative to the sums. Rounding may move a row over a threshold; a maximum or a mean is wrong by about a half."""


def states_add_up(learner: Learner) -> list[Finding]:
    """Examine the metrics, and have those left out whose values would be wrong; no findings without metrics."""
    metrics = learner.call.metrics
    if not metrics.metrics:
        return []
    wrong = {name for name, metric in metrics.metrics.items() if not metric.variables}
    detail = "keeps no Keras variable: create its state by add_variable or add_weight"
    if not wrong:
        wrong = {name for name in metrics.metrics if _starts_elsewhere(learner, name)}
        detail = "starts from a value other than 0: keep sums and counts, and compute the value in result()"
    if not wrong:
        compared = _states(learner)
        if compared is None:
            text = "the model gives NaN or infinity on made-up rows; its own records will show"
            return [Finding(claim=ADDS_UP, holds=None, detail=text)]
        wrong = {name for name, *states in compared if not all(map(_close, *states))}
        detail = (
            "keeps a maximum, a mean or the last value, which cannot be added up over calls: keep sums and counts, "
            "and compute the value in result()"
        )
    metrics.left_out = frozenset(wrong)
    if not wrong:
        return [Finding(claim=ADDS_UP, holds=True)]
    text = f"metric {', '.join(sorted(wrong))} {detail}. With training.proof: warn it is not shown"
    return [Finding(claim=ADDS_UP, holds=False, detail=text)]


def _starts_elsewhere(learner: Learner, name: str) -> bool:
    metric = learner.call.metrics.metrics[name]
    with learner.strategy.scope():
        metric.reset_state()
    return any(np.any(np.asarray(read(variable))) for variable in metric.variables)


def _states(learner: Learner) -> list[tuple[str, list[State], list[State]]] | None:
    """Return each metric's states: added up over two calls, and of one call; None where an update is not finite."""
    one, other = learner.rows_of(learner.probe(1)), learner.rows_of(learner.probe(2))
    kept = KeptState(learner)
    call = partial(learner.call, visit=None)  # as they are: shaped rows would be counted, too
    with kept.undone():
        first, second = call(one), call(other)
    with kept.undone():
        both = call(tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), one, other))
    if not all(result.finite.all() for result in (first, second, both)):
        return None
    compared, at = [], 0
    for name, metric in learner.call.metrics.metrics.items():
        places = range(at, at := at + len(metric.variables))
        apart = [first.states[place] + second.states[place] for place in places]
        compared.append((name, apart, [both.states[place] for place in places]))
    return compared


def _close(apart: Any, together: Any) -> bool:
    scale = max(float(np.abs(apart).sum()), float(np.abs(together).sum()))
    return float(np.abs(apart - together).sum()) <= _TOLERANCE * scale + 1e-6
