"""The epochs of a pretraining: learnt, judged, ended early, or refused in one line."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.reasons import Reason
from millrace.pipelines.files.visits import CountedShard, Refusals
from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.stream.blocks import Rows
from millrace.training.errors import StepError
from millrace.training.model.learner import Learner
from millrace.training.pretraining.epochs import Epoch, EventFiles, Pretrained, Pretraining, PretrainingOptions
from tests.training.conftest import BATCH, MakeLearner, block, largest_difference, mlp, state_of, with_feature

pytestmark = pytest.mark.tensorflow
K = 3
ROWS = K * BATCH


class Blocks:
    """The same blocks in every epoch."""

    def __init__(self, *blocks: Rows) -> None:
        self.blocks = blocks

    def epoch(self, number: int) -> Iterator[Rows]:
        yield from self.blocks


class Silent:
    """Notes the learner's state after each epoch."""

    def __init__(self, look: Callable[[], Any] = lambda: None) -> None:
        self.look, self.seen = look, list[Any]()

    def began(self, epoch: int, rows: int) -> None: ...

    def advanced(self, rows: int, loss: float) -> None: ...

    def ended(self, epoch: Epoch) -> None:
        self.seen.append(self.look())


def train(
    learner: Any, blocks: Blocks, validation: Blocks | None = None, hear: Silent | None = None, **options: Any
) -> Pretrained:
    rows = ROWS * len(blocks.blocks)
    shards = [CountedShard(name="a", path="a", rows=rows, end=rows)]
    loop = Pretraining(learner, shards, blocks, validation, Refusals(), PretrainingOptions(**options))
    return loop.run(hear or Silent())


def test_epochs_teach_the_model_and_count_every_row(learner_of: MakeLearner) -> None:
    learner = learner_of()
    made = train(learner, Blocks(block(K), block(K, first=ROWS)), Blocks(block(K, seed=0)), epochs=4)
    assert [str(epoch.visited) for epoch in made.epochs] == [f"visited 100 % of {2 * ROWS} rows, 0 twice"] * 4
    first, last = made.epochs[0].figures, made.epochs[-1].figures
    assert last["loss"] < first["loss"]
    assert last["val_loss"] < first["val_loss"]
    assert made.steps == 4 * 2 * K
    assert not learner.witness.counts(), "a live checkpoint has learnt no offset yet"


def test_the_validation_is_scored_as_keras_scores_it_and_changes_nothing(learner_of: MakeLearner) -> None:
    learner = learner_of(replicas=2)
    part = block(K, rows=ROWS - 5)
    before = list[Any]()

    class Looking(Blocks):
        def epoch(self, number: int) -> Iterator[Rows]:
            before.append(state_of(learner))
            yield from super().epoch(number)

    (epoch,) = train(learner, Blocks(block(K)), Looking(part), epochs=1).epochs
    assert largest_difference(before[0], state_of(learner)) == 0
    x, y = part.features["x"].numpy().reshape(ROWS, -1)[:-5], part.labels.numpy().reshape(-1)[:-5]
    scores = np.asarray(learner.model(x, training=False))[:, 0]
    expected = -np.mean(np.where(y > 0, np.log(scores), np.log(1 - scores)))
    assert epoch.figures["val_loss"] == pytest.approx(expected, rel=1e-5)
    assert epoch.figures["val_accuracy"] == pytest.approx(np.mean((scores > 0.5) == (y > 0)))


@pytest.mark.slow
def test_counts_of_classes_go_on_over_the_epochs_and_the_validation_adds_none(fresh_learner_of: MakeLearner) -> None:
    options = BalanceSettings(target={"1": 0.5, "0": 0.5}, half_life=10_000)
    learner = Learner(mlp, None, replace(fresh_learner_of().options, balance=options))
    train(learner, Blocks(block(K)), Blocks(block(K, seed=5)), epochs=2)
    balance = learner.call.shaping.balance
    assert balance is not None
    ones = int(block(K).labels.numpy().sum())
    expected = 2 * np.array([ROWS - ones, ones])
    np.testing.assert_allclose(balance.counts.numpy(), expected, rtol=2 * ROWS * np.log(2) / 10_000)


@pytest.mark.row(35)
def test_patience_ends_it_and_returns_to_the_best_epoch(learner_of: MakeLearner) -> None:
    learner = learner_of()
    wrong = block(K)
    wrong = wrong._replace(labels=1 - wrong.labels)
    hear = Silent(lambda: state_of(learner))
    made = train(learner, Blocks(block(K)), Blocks(wrong), hear, epochs=9, patience=2)
    assert (len(made.epochs), made.best) == (3, 1)
    assert largest_difference(hear.seen[0], state_of(learner)) == 0
    assert largest_difference(hear.seen[2], state_of(learner)) > 0


def test_a_record_whose_update_is_not_finite_is_set_aside_by_name(learner_of: MakeLearner) -> None:
    (epoch,) = train(learner_of(), Blocks(with_feature(block(K), 3, float("nan"))), epochs=1).epochs
    assert epoch.set_aside == {Reason.UPDATE_NOT_FINITE: 1}
    assert epoch.learnt == ROWS - 1
    assert np.isfinite(epoch.figures["loss"])


def test_a_few_such_records_in_each_batch_of_a_block_end_nothing(learner_of: MakeLearner) -> None:
    scattered = block(K)
    for row in range(0, ROWS, 4):
        scattered = with_feature(scattered, row, float("nan"))
    (epoch,) = train(learner_of(), Blocks(scattered), epochs=1).epochs
    assert epoch.set_aside == {Reason.UPDATE_NOT_FINITE: 9}, "as many as most of a batch, and a quarter of each"
    assert epoch.learnt == ROWS - 9


def test_an_epoch_that_learns_nothing_says_what_became_of_its_rows(learner_of: MakeLearner) -> None:
    refusals, shards = Refusals(), [CountedShard(name="a", path="a", rows=9, end=9)]
    refusals.note(0, [(row, Reason.MISSING) for row in range(2)])
    refusals.leave_out(0, range(9), [(row, "golden") for row in range(2, 9)])
    loop = Pretraining(learner_of(), shards, Blocks(), None, refusals, PretrainingOptions())
    with pytest.raises(
        StepError, match=r"no row was learnt \(2 set aside as missing, 7 left out by golden\)"
    ) as raised:
        loop.run(Silent())
    assert "\n" not in str(raised.value)


def test_a_validation_without_a_row_that_can_be_used_says_so(learner_of: MakeLearner) -> None:
    with pytest.raises(StepError, match="none of the validation rows could be used") as raised:
        train(learner_of(), Blocks(block(K)), Blocks(block(K, rows=0)), epochs=1)
    assert "learning rate" not in str(raised.value)


def test_an_epoch_whose_watched_figure_is_nan_is_worse_than_any_other(learner_of: MakeLearner) -> None:
    values = [float("nan"), 0.5, float("nan"), 0.4]

    class Judged(Pretraining):
        """Stands in for a metric that is NaN in some epochs."""

        def _validated(self, number: int, callbacks: Any) -> dict[str, float]:
            return {"val_accuracy": values[number - 1]}

    options = PretrainingOptions(epochs=9, patience=2, watch=("val_accuracy",), higher_is_better=(True,))
    shards = [CountedShard(name="a", path="a", rows=ROWS, end=ROWS)]
    made = Judged(learner_of(), shards, Blocks(block(K)), Blocks(), Refusals(), options).run(Silent())
    assert (len(made.epochs), made.best) == (4, 2)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_it_in_one_line(fresh_learner_of: MakeLearner) -> None:
    learner = fresh_learner_of(lambda: mlp(keras.layers.Lambda(lambda x: x * float("inf"))))
    with pytest.raises(StepError, match="the loss is not finite for most records") as raised:
        train(learner, Blocks(block(K)), epochs=1)
    assert "\n" not in str(raised.value)


def test_keras_callbacks_are_called_as_by_fit_and_may_end_it(learner_of: MakeLearner) -> None:
    heard = list[str]()

    class Hears(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            heard.append(f"{epoch} {sorted(logs)}")
            self.model.stop_training = epoch == 1

    made = train(learner_of(), Blocks(block(K)), epochs=9, callbacks=[Hears()])
    assert heard == ["0 ['accuracy', 'loss']", "1 ['accuracy', 'loss']"]
    assert len(made.epochs) == 2


def test_event_files_hold_the_figures_of_each_epoch(learner_of: MakeLearner, tmp_path: Path) -> None:
    made = train(learner_of(), Blocks(block(K)), Blocks(block(K)), epochs=2, callbacks=[EventFiles(tmp_path)])
    for part, prefix in (("train", ""), ("validation", "val_")):
        (path,) = (tmp_path / part).iterdir()
        events = tf.compat.v1.train.summary_iterator(str(path))
        found = {(event.step, one.tag): one for event in events for one in event.summary.value}
        for epoch in made.epochs:
            written = found[epoch.number - 1, "epoch_loss"]
            assert tf.make_ndarray(written.tensor) == np.float32(epoch.figures[f"{prefix}loss"])
            assert written.metadata.plugin_data.plugin_name == "scalars" or epoch.number > 1
