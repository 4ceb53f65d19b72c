"""The proof on `preprocess`: each row is computed from its own row alone, and keeps its place.

The function is mapped over the rows that happen to come together, absent ones among them. If it looked at a row's
neighbours (a mean over the batch, a sort), what is learnt would depend on them. Runs while the model is examined.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.learner import Learner
from millrace.training.model.proof.proof import Finding

CLAIM = "preprocess makes each row of its own row alone"


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
        return [Finding(claim=CLAIM, holds=None, detail=f"a batch of {size} is too small to show it")]
    probe = learner.probe()
    half = size // 2
    neighbours: npt.NDArray[np.int64] = np.arange(size)
    neighbours[half:] = 0  # the first half as it is, beside other rows than before
    found = [*_differing(learner.rows_of(probe), learner.rows_of(probe.arranged(neighbours)), slice(half))]
    if not found:
        return [Finding(claim=CLAIM, holds=True)]
    text = (
        f"{found[0]} of a row comes out otherwise beside other rows; compute it from the row itself, and leave what "
        "is taken over many rows to a layer of the model"
    )
    return [Finding(claim=CLAIM, holds=False, detail=text)]


def _differing(one: Rows, other: Rows, rows: slice) -> Iterator[str]:
    """Yield the names of the columns that differ in these rows."""
    pairs = zip(_named(one), _named(other), strict=True)
    for (name, mine), (_, theirs) in pairs:
        if not _same(mine[0][rows], theirs[0][rows]):
            yield name


def _named(rows: Rows) -> list[tuple[str, Any]]:
    features = [(f"feature {name!r}", column) for name, column in sorted(rows.features.items())]
    labels = [("the label", column) for column in tf.nest.flatten(rows.labels)]
    return [*features, *labels, ("the weight", rows.weights)]


def _same(one: Any, other: Any) -> bool:
    a, b = one.numpy(), other.numpy()
    if a.dtype == object:
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=a.dtype.kind == "f"))
