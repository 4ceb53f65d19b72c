"""A golden set: scores are those of the weights that were saved, and nothing that is learnt depends on it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from millrace.training.checkpoints.manifest import GoldenScores
from millrace.training.commands import Rewind, Save
from millrace.training.model.golden.golden_records import GoldenRecords
from millrace.training.model.golden.golden_set import GoldenSet
from tests.training.conftest import BATCH, FEATURES, MakeLearner, mlp, state_of
from tests.training.trainer_rig import SHARE, Run, Topic, running

pytestmark = pytest.mark.tensorflow
ROWS = 2 * BATCH + 5


class Drawing(keras.layers.Layer):
    """Draws and counts whenever it is called, in training or not."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        return x * (1.0 + 0.01 * self.calls) + 0.01 * keras.random.normal((8,), seed=self.seeds)


def drawing() -> Any:
    return mlp(Drawing(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3))


def normed() -> Any:
    return mlp(keras.layers.BatchNormalization())


def golden_records(rows: int = ROWS, seed: int = 5) -> GoldenRecords:
    x = np.random.default_rng(seed).normal(size=(rows, FEATURES)).astype(np.float32)
    return GoldenRecords(
        path=Path("golden.parquet"),
        sha256=f"{seed:064x}",
        features={"x": x},
        labels={"y": (x.sum(axis=1) > 0).astype(np.float32)},
        weights=np.ones(rows, np.float32),
        refused=0,
        complaint="",
    )


def by_hand(model: Any, records: GoldenRecords) -> dict[str, float]:
    """Return the mean loss and the accuracy of the model's answers, without Keras' metrics."""
    y = records.labels["y"].astype(np.float64)
    p = np.asarray(model(records.features["x"], training=False), np.float64)[:, 0]
    return {
        "loss": float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))),
        "accuracy": float(np.mean((p > 0.5) == (y > 0.5))),
    }


def learns(run: Run, saves: int) -> None:
    """Learn and save in turn."""
    for at in range(1, saves + 1):
        run.topic.produce(SHARE)
        run.reaches(at * SHARE)
        run.ask(Save())


def test_each_checkpoint_has_the_scores_of_the_very_weights_that_it_holds(tmp_path: Path) -> None:
    records = golden_records()
    with running(tmp_path, Topic(), golden=records) as run:
        learns(run, 3)
        store, learner = run.store, run.learner
        figures = [] if run.golden is None else [run.golden.figures()]
    found = []
    for number in range(4):
        manifest = store.manifest(number)
        assert manifest.golden is not None
        assert (manifest.golden.rows, manifest.golden.sha256) == (ROWS, records.sha256)
        learner.parts[0].restore(store.load(number)["model"])
        assert manifest.golden.values == pytest.approx(by_hand(learner.model, records), rel=1e-5)
        assert manifest.scores["golden.loss"] == manifest.golden.values["loss"]
        found.append(manifest.golden.values["loss"])
        newest = (number, manifest.golden.values)
    assert len({*found}) == 4, "the weights of each are others"
    assert [(one.checkpoint, one.values) for one in figures] == [newest]


def test_what_is_learnt_is_the_same_to_the_bit_with_a_golden_set_and_without(tmp_path: Path) -> None:
    states, live = [], []
    for name, records in (("without", None), ("with", golden_records())):
        with running(tmp_path / name, Topic(), build=drawing, golden=records) as run:
            learns(run, 3)
            states.append({key: value.tobytes() for key, value in state_of(run.learner).items()})
            live.append((run.live.look().values, run.live.look().cumulative))
            assert (run.durable[-1].golden is None) == (records is None)
    assert states[0] == states[1]
    assert live[0] == live[1]
    assert any("seed" in key for key in states[0])
    assert any(key.endswith("calls") for key in states[0])


def test_a_rewind_goes_back_to_the_scores_of_its_target(tmp_path: Path) -> None:
    with running(tmp_path, Topic(), golden=golden_records()) as run:
        learns(run, 2)
        first = run.store.manifest(1).golden
        rewound = run.ask(Rewind(to=1))
        assert rewound.golden == first != run.store.manifest(2).golden
        assert run.golden is not None
        assert first is not None
        assert (run.golden.figures().checkpoint, run.golden.figures().values) == (3, first.values)
    with running(tmp_path, run.topic, golden=golden_records(seed=6)) as again:
        again.golden.durable(again.begun_at)  # type: ignore[union-attr]  # it has one
        assert again.golden.figures().values is None, "those of another set are not shown for this one"  # type: ignore[union-attr]


def test_a_metric_that_raises_in_a_later_checkpoint_is_told_and_ends_nothing(
    learner_of: MakeLearner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = GoldenSet(learner_of(), golden_records())
    assert golden.scores() is not None

    def raises(_states: Any) -> None:
        raise ValueError("no positive among them")

    monkeypatch.setattr(golden._learner.call.metrics, "results", raises)
    assert golden.scores() is None
    assert golden.figures().error == "ValueError: no positive among them"
    assert "the golden set is not scored: the model raised ValueError" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, BATCH, ROWS])
def test_rows_that_fill_a_batch_up_do_not_count_on_any_replica(learner_of: MakeLearner, rows: int) -> None:
    records, found = golden_records(rows), []
    for replicas in (1, 2):
        learner = learner_of(normed, replicas=replicas)
        before = state_of(learner)
        golden = GoldenSet(learner, records)
        scores = golden.scores()
        assert scores is not None
        found.append(scores.values)
        assert {key: one.tobytes() for key, one in before.items()} == {
            key: one.tobytes() for key, one in state_of(learner).items()
        }
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0] == pytest.approx(by_hand(learner.model, records), rel=1e-5)


def test_records_weigh_in_the_loss_as_they_do_in_the_stream(learner_of: MakeLearner) -> None:
    records = golden_records()
    twice = GoldenRecords(
        **{
            **{name: getattr(records, name) for name in GoldenRecords.__dataclass_fields__},
            "weights": records.weights * 2,
        }
    )
    once, more = (GoldenSet(learner_of(), one).scores() for one in (records, twice))
    assert isinstance(once, GoldenScores)
    assert isinstance(more, GoldenScores)
    assert more.values["loss"] == pytest.approx(2 * once.values["loss"], rel=1e-6)
