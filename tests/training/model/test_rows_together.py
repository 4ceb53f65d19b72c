"""A loss that compares the rows of a batch, `training.rows: together`: the model of docs/model.md and others."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.app.service.model_setup import examine
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import BlockFacts, Delivery, Rows, Span
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from millrace.training.recovery.step_errors import BlockRaised, StepErrorOptions, StepRecovery
from millrace.training.telemetry.events import EventKind, Severity
from tests.training.conftest import largest_difference, state_of

pytestmark = pytest.mark.tensorflow

B = 8
IDS = [Field(name=name, source=name, dtype="int64") for name in ("user", "item")]
SCHEMA = Schema(features=tuple(IDS), labels=(Field(name="clicked", source="clicked", dtype="float32"),))
OPTIONS = LearnerOptions(schema=SCHEMA, batch_size=B, devices=DeviceOptions(replicas=1), seed=3, rows_together=True)


@cache
def documented() -> dict[str, Any]:
    """Return what the example in docs/model.md defines."""
    text = (Path(__file__).parents[3] / "docs" / "model.md").read_text()
    code = text.partition("## A loss that compares rows")[2].partition("```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    return namespace


def two_towers() -> Any:
    return documented()["build_model"]()


def traced(build: Any, options: LearnerOptions = OPTIONS) -> Learner:
    learner = Learner(build, None, options)
    learner.trace(learner.rows_of(learner.probe()), deterministic=False)
    return learner


def rows(batches: int, seed: int = 0, bad: int | None = None) -> Rows:
    """Make batches in which each user takes the item of its number; the label of the row `bad` is NaN."""
    users = np.stack([np.random.default_rng([seed, at]).permutation(B) for at in range(batches)])
    clicked = np.ones((batches, B), np.float32)
    if bad is not None:
        clicked.reshape(-1)[bad] = np.nan
    return Rows(
        features={"user": tf.constant(users), "item": tf.constant(users)},
        labels=tf.constant(clicked),
        weights=tf.ones((batches, B)),
        offsets=tf.reshape(tf.range(batches * B, dtype=tf.int64), (batches, B)),
        partitions=tf.zeros((batches, B), tf.int32),
    )


def test_the_documented_two_towers_pass_and_learn_and_are_refused_where_rows_are_apart() -> None:
    learner = traced(two_towers)
    assert [(finding.holds, finding.detail) for finding in examine(learner, whole_batches=True)] == [(True, "")]
    losses = [float(learner.learn(rows(4, seed)).result.losses.mean()) for seed in range(30)]
    assert losses[0] == pytest.approx(np.log(B), abs=0.1)
    assert losses[-1] < 0.5 * losses[0]
    apart, *_ = examine(traced(two_towers, replace(OPTIONS, rows_together=False)))
    assert apart.holds is False
    assert "training.rows: together" in apart.detail


def similarities() -> Any:
    """Build a model that gives each row its likeness to all others, and so compares rows by itself."""
    user, item = keras.Input((), name="user", dtype="int64"), keras.Input((), name="item", dtype="int64")
    users, items = (keras.layers.Embedding(100, 4)(ids % 100) for ids in (user, item))
    model = keras.Model([user, item], keras.ops.sum(users * keras.ops.mean(items, axis=0), axis=-1))
    model.compile(optimizer="adam", loss="mse")
    return model


def test_a_model_whose_predictions_compare_rows_is_refused_with_a_way_out() -> None:
    (finding,) = examine(traced(similarities), whole_batches=True)
    assert finding.holds is False
    assert "compare the rows in the loss" in finding.detail


def test_a_batch_that_gives_no_finite_update_is_set_aside_whole_and_leaves_no_trace() -> None:
    learner, other = traced(two_towers), traced(two_towers)
    lesson = learner.learn(rows(3, bad=B + 2))
    assert lesson.culprits.offsets == tuple((0, offset) for offset in range(B, 2 * B))
    assert lesson.result.finite.tolist() == [True, False, True]
    good: Rows = tf.nest.map_structure(lambda column: tf.gather(column, [0, 2]), rows(3))
    other.learn(good)
    assert largest_difference(state_of(learner), state_of(other)) == 0


def strict() -> Any:
    """Build the two towers with a loss that raises on a label that is no number."""

    base: Any = documented()["InBatchSoftmax"]

    class Strict(base):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_less(y_true, 4.0, message="not a click")]):
                return super().call(tf.identity(y_true), y_pred)

    model = two_towers()
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=Strict())
    return model


def test_a_batch_that_raises_is_set_aside_whole_with_one_event() -> None:
    learner, events = traced(strict), list[tuple[EventKind, str]]()

    def report(kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        events.append((kind, text))

    steps = StepRecovery(
        learner,
        StepErrorOptions(),
        progress=lambda: None,
        newest=lambda: 0,
        report_event=report,
    )
    p0 = Partition("clicks", 0)
    facts = BlockFacts(
        number=0, incarnation=1, spans=(Span(partition=p0, index=0, start=0, end=3 * B, learnt=3 * B),), batches=3,
        rows=3 * B, seed=0, fetched_at=0.0, oldest_ms=0, newest_ms=0,
    )  # fmt: skip
    made = rows(3, bad=2 * B + 1)
    made = made._replace(labels=tf.where(tf.math.is_nan(made.labels), 5.0, made.labels))
    with pytest.raises(BlockRaised) as raised:
        steps.learn(Delivery(made, facts))
    steps.search(raised.value.spans)
    learnt = steps.learn(Delivery(made, facts))
    assert learnt.culprits()[Reason.STEP_RAISED].offsets == tuple((0, offset) for offset in range(2 * B, 3 * B))
    assert [piece.rows.offsets.numpy().min() for piece in learnt.pieces] == [0, B]
    ((kind, sentence),) = events
    assert kind is EventKind.SET_ASIDE
    assert sentence.startswith(f"clicks:0 offsets {2 * B} to {3 * B - 1} ({B} records of one batch) are set aside: ")
