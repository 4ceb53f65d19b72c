"""Changed hyperparameters: said, decided by policy, and never in force without anybody knowing."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints import PartState
from millrace.training.commands import Rewind, Save
from millrace.training.model.hyperparameters import (
    NAME,
    Change,
    HyperparameterOptions,
    Hyperparameters,
    OnChange,
    faded,
)
from millrace.training.model.variables import backing, optimizers_of
from tests.training.conftest import BATCH, MakeLearner, largest_difference, mlp, state_of
from tests.training.trainer_rig import RigOptions, Run, Topic, running

pytestmark = pytest.mark.tensorflow
BUILD, CHECKPOINT = OnChange.BUILD, OnChange.CHECKPOINT
Optimizer = Callable[[], Any]


def compiled(optimizer: Optimizer) -> Callable[[], Any]:
    """Build the small classifier with this optimizer."""

    def build() -> Any:
        model = mlp()
        model.compile(optimizer=optimizer(), loss="binary_crossentropy", metrics=["accuracy"])
        return model

    return build


def with_adam(**options: Any) -> Any:
    return compiled(lambda: keras.optimizers.Adam(**options))()


def adam(**options: Any) -> Callable[[], Any]:
    """Return how the small classifier is built with Adam; the same options make the same recipe of the pool."""
    return partial(with_adam, **options)


def decaying(steps: int, rate: float = 0.5) -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.ExponentialDecay(rate, decay_steps=steps, decay_rate=0.5)


def options(policy: OnChange = BUILD, **settings: Any) -> HyperparameterOptions:
    return HyperparameterOptions(
        settings={name.replace("__", "."): s for name, s in settings.items()}, on_change=policy
    )


def float32(value: float) -> float:
    return float(np.float32(value))


def learn(root: Path, topic: Topic, build: Callable[[], Any], given: HyperparameterOptions | None = None) -> Run:
    """Run a trainer that learns three more blocks and ends in order."""
    with running(root, topic, build=build, hyperparameters=given or options()) as run:
        topic.produce(6 * BATCH)
        run.reaches(topic.ends[next(iter(topic.ends))])
        run.stop()
    return run


def refused(root: Path, topic: Topic, build: Callable[[], Any], given: HyperparameterOptions) -> tuple[str, bool]:
    """Start a trainer that must be refused; return the reason, and whether the model is as it was built."""
    run = Run(root, topic, RigOptions(build=build, hyperparameters=given))
    before = state_of(run.learner)
    try:
        with pytest.raises(ConfigError) as told:
            run.saving.begin_or_restore(dict, start_over=False)
    finally:
        run._lease.release()
    return str(told.value), largest_difference(before, state_of(run.learner)) == 0


@pytest.fixture
def topic() -> Topic:
    return Topic()


# What a checkpoint says


def test_a_checkpoint_holds_every_scalar_of_every_optimizer_and_the_settings() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10, 20], [0.3, 0.2, 0.1])
    model = compiled(lambda: keras.optimizers.AdamW(schedule, weight_decay=0.25, clipnorm=1.5, use_ema=True))()
    model.head_optimizer = keras.optimizers.SGD(0.5, momentum=0.75, nesterov=True)
    facts = Hyperparameters(model, options(training__batch_size=64)).snapshot().facts
    wanted = {
        "optimizer.class": "AdamW",
        "optimizer.learning_rate": "PiecewiseConstantDecay",
        "optimizer.learning_rate.boundaries": [10, 20],
        "optimizer.learning_rate.values": [0.3, 0.2, 0.1],
        "optimizer.weight_decay": 0.25,
        "optimizer.clipnorm": 1.5,
        "optimizer.global_clipnorm": None,
        "optimizer.use_ema": True,
        "optimizer.epsilon": 1e-7,
        "head_optimizer.class": "SGD",
        "head_optimizer.learning_rate": 0.5,
        "head_optimizer.momentum": 0.75,
        "head_optimizer.nesterov": True,
        "training.batch_size": 64,
    }
    assert {name: facts.get(name, "absent") for name in wanted} == wanted
    assert not any(name.endswith(".name") for name in facts), "automatic names count up"


class Odd(keras.optimizers.SGD):
    """Whose config cannot be had."""

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("no config")


def test_an_optimizer_without_a_config_tells_its_class_and_rate_at_least() -> None:
    facts = Hyperparameters(compiled(lambda: Odd(0.5))(), options()).snapshot().facts
    assert facts == {"optimizer.class": "Odd", "optimizer.learning_rate": 0.5}


# The learning rate


def test_a_rate_that_was_just_deployed_is_in_force_after_a_restore(
    tmp_path: Path, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    first = learn(tmp_path, topic, adam(learning_rate=1e-2))
    saved = state_of(first.learner)
    with running(tmp_path, topic, build=adam(learning_rate=1e-5)) as run:
        assert run.learner.learning_rate == float32(1e-5)
        restored = state_of(run.learner)
        assert restored.pop("optimizer/optimizer/learning_rate") == np.float32(1e-5)
        assert saved.pop("optimizer/optimizer/learning_rate") == np.float32(1e-2)
        assert largest_difference(saved, restored) == 0, "weights, slots and iterations are the checkpoint's"
        change = Change(name="optimizer.learning_rate", then=float32(1e-2), now=float32(1e-5), used=BUILD)
        assert run.saving.changes == (change,)
        run.sees(lambda: run.board.latest)
        assert run.board.latest is not None
        assert (run.board.latest.changes, run.board.latest.learning_rate) == ((change,), float32(1e-5))
        topic.produce(2 * BATCH)
        run.reaches(topic.ends[next(iter(topic.ends))])
        run.stop()
    gone = largest_difference(saved, {key: value for key, value in state_of(run.learner).items() if key in saved})
    assert gone > 0
    assert largest_difference(weights(saved), weights(state_of(run.learner))) < 1e-3, "it went on in small steps"
    line = "optimizer.learning_rate: 0.01 in the checkpoint, 1e-05 in model and settings; 1e-05 is used"
    assert [record.getMessage() for record in caplog.records if "learning_rate" in record.getMessage()] == [line]


def weights(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key.startswith("model/")}


def test_by_the_other_policy_the_checkpoints_rate_holds_and_is_said_at_every_start(
    tmp_path: Path, topic: Topic
) -> None:
    learn(tmp_path, topic, adam(learning_rate=1e-2))
    for _ in range(2):
        run = learn(tmp_path, topic, adam(learning_rate=1e-5), options(CHECKPOINT))
        assert run.learner.learning_rate == float32(1e-2)
        assert [(change.name, change.used) for change in run.saving.changes] == [
            ("optimizer.learning_rate", CHECKPOINT)
        ]
    run = learn(tmp_path, topic, adam(learning_rate=1e-5), options(BUILD))
    assert run.learner.learning_rate == float32(1e-5)
    assert [(change.then, change.used) for change in run.saving.changes] == [(float32(1e-2), BUILD)]
    assert learn(tmp_path, topic, adam(learning_rate=1e-5)).saving.changes == (), "said once, and learnt with since"


class Cooling(keras.Model):
    """Halves its own rate at every step."""

    def train_step(self, data: Any) -> Any:
        told = super().train_step(data)
        backing(self.optimizer._learning_rate).assign(self.optimizer.learning_rate * 0.5)
        return told


@pytest.mark.parametrize("policy", OnChange)
def test_a_rate_that_the_model_moves_by_itself_comes_back_as_it_was(
    tmp_path: Path, topic: Topic, policy: OnChange
) -> None:
    first = learn(tmp_path, topic, lambda: mlp(model=Cooling), options(policy))
    assert first.learner.learning_rate < 1e-3
    with running(tmp_path, topic, build=lambda: mlp(model=Cooling), hyperparameters=options(policy)) as run:
        assert run.saving.changes == ()
        assert largest_difference(state_of(first.learner), state_of(run.learner)) == 0


def test_a_rewind_goes_by_the_same_rule(tmp_path: Path, topic: Topic) -> None:
    learn(tmp_path, topic, adam(learning_rate=1e-2))
    with running(tmp_path, topic, build=adam(learning_rate=1e-5)) as run:
        topic.produce(BATCH)
        run.reaches(topic.ends[next(iter(topic.ends))])
        run.ask(Save())
        run.ask(Rewind(to=1))
        assert run.learner.learning_rate == float32(1e-5)
        assert [change.then for change in run.saving.changes] == [float32(1e-2)]
        run.ask(Rewind(to=2))
        assert run.saving.changes == (), "2 was learnt with what is deployed"


def test_a_rewind_to_what_the_policy_cannot_hold_is_refused_and_learning_goes_on(tmp_path: Path, topic: Topic) -> None:
    learn(tmp_path, topic, adam(learning_rate=1e-2, beta_1=0.5))
    learn(tmp_path, topic, adam(learning_rate=1e-2, beta_1=0.75))
    with running(tmp_path, topic, build=adam(beta_1=0.75), hyperparameters=options(CHECKPOINT)) as run:
        number = run.begun_at.number
        with pytest.raises(ConfigError, match=r"optimizer\.beta_1, which is 0\.5 in the checkpoint and 0\.75 in model"):
            run.ask(Rewind(to=1))
        topic.produce(BATCH)
        run.reaches(topic.ends[next(iter(topic.ends))])
        assert run.store.newest() == run.store.manifest(number)


# A schedule


def test_the_effective_rate_is_the_schedules_at_the_restored_step(tmp_path: Path, topic: Topic) -> None:
    first = learn(tmp_path, topic, adam(learning_rate=decaying(steps=6)))
    assert first.learner.learning_rate == pytest.approx(0.25)
    run = learn(tmp_path, topic, adam(learning_rate=decaying(steps=12)))
    assert run.learner.learning_rate == pytest.approx(0.25)
    assert [str(change) for change in run.saving.changes] == [
        "optimizer.learning_rate.decay_steps: 6 in the checkpoint, 12 in model and settings; 12 is used"
    ]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_number_and_a_schedule_take_each_others_place(learner_of: MakeLearner, replicas: int) -> None:
    constant = learner_of(adam(learning_rate=1e-2), replicas=replicas)
    scheduled = learner_of(adam(learning_rate=decaying(steps=6)), replicas=replicas)
    for source, target, rate in ((constant, scheduled, 0.5), (scheduled, constant, 1e-2)):
        theirs, ours = (Hyperparameters(learner.model, options()) for learner in (source, target))
        state = {part.name: part.snapshot() for part in (*source.parts, theirs)}
        ours.check(state)
        for part in (*target.parts, ours):
            if isinstance(part, Hyperparameters) or part.name == "optimizer":
                part.restore(state[part.name])
        assert [change.name for change in ours.changes] == ["optimizer.learning_rate"]
        assert target.learning_rate == pytest.approx(rate)
        with pytest.raises(ConfigError, match=r"checkpoint cannot hold optimizer\.learning_rate"):
            Hyperparameters(target.model, options(CHECKPOINT)).check(state)


def test_a_schedule_that_has_all_but_ended_the_learning_is_warned_of(
    tmp_path: Path, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, decay_steps=4)
    learn(tmp_path, topic, adam(learning_rate=schedule))
    assert "CosineDecay" not in caplog.text, "it has not begun to decay"
    run = learn(tmp_path, topic, adam(learning_rate=schedule))
    assert run.learner.learning_rate == 0
    assert "CosineDecay gives 0 at step 6, after it began with up to 0.01" in caplog.text


def test_a_schedule_that_warms_up_or_comes_back_is_not_warned_of() -> None:
    schedules = keras.optimizers.schedules
    warming = schedules.CosineDecay(0.0, 10_000, warmup_target=1e-2, warmup_steps=1000)
    for schedule in (warming, schedules.CosineDecayRestarts(1e-2, 100, t_mul=1.0), decaying(100)):
        model = adam(learning_rate=schedule)()
        for step in (0, 1, 300):
            model.optimizer.iterations.assign(step)
            assert list(faded(model)) == []
    model.optimizer.iterations.assign(100_000)
    assert len(list(faded(model))) == 1


# Constants of the compiled step

CONSTANTS: dict[str, tuple[Optimizer, Optimizer, str]] = {
    "momentum": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.5),
        lambda: keras.optimizers.SGD(0.1, momentum=0.75),
        "optimizer.momentum",
    ),
    "beta": (lambda: keras.optimizers.Adam(beta_1=0.5), lambda: keras.optimizers.Adam(beta_1=0.75), "optimizer.beta_1"),
    "weight decay": (
        lambda: keras.optimizers.AdamW(weight_decay=0.5),
        lambda: keras.optimizers.AdamW(weight_decay=0.75),
        "optimizer.weight_decay",
    ),
    "clipping": (
        keras.optimizers.Adam,
        lambda: keras.optimizers.Adam(clipnorm=1.0),
        "optimizer.clipnorm",
    ),
}


def restored(then: Optimizer, now: Optimizer, policy: OnChange) -> Hyperparameters:
    """Return the hyperparameters of a model, after they alone were restored from another model's."""
    theirs, ours = (Hyperparameters(compiled(one)(), options(policy)) for one in (then, now))
    ours.check({"optimizer": PartState(), NAME: theirs.snapshot()})
    ours.restore(theirs.snapshot())
    return ours


@pytest.mark.parametrize(("then", "now", "name"), CONSTANTS.values(), ids=CONSTANTS)
def test_a_constant_of_the_step_is_the_built_one_or_refused_by_name(then: Optimizer, now: Optimizer, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^training.on_hyperparameter_change: checkpoint cannot hold {name}, which "):
        restored(then, now, CHECKPOINT)
    built = restored(then, now, BUILD)
    assert [(change.name, change.used) for change in built.changes] == [(name, BUILD)]
    assert built.snapshot() == Hyperparameters(compiled(now)(), options()).snapshot()
    assert restored(now, now, CHECKPOINT).changes == ()


def test_where_the_policy_cannot_hold_a_constant_nothing_is_restored(tmp_path: Path, topic: Topic) -> None:
    learn(tmp_path, topic, adam(beta_1=0.5))
    told, untouched = refused(tmp_path, topic, adam(beta_1=0.75), options(CHECKPOINT))
    assert "beta_1, which is 0.5 in the checkpoint and 0.75 in model.py" in told
    assert untouched


# Another optimizer

OTHERS: dict[str, tuple[Optimizer, Optimizer, str]] = {
    "other slots": (
        lambda: keras.optimizers.SGD(momentum=0.5),
        keras.optimizers.Adam,
        "(Adam here, SGD there): optimizer/dense_1_bias_velocity is new",
    ),
    "the same slots": (
        keras.optimizers.Adam,
        keras.optimizers.AdamW,
        "(AdamW here, Adam there). Take back the change",
    ),
}


@pytest.mark.parametrize(
    ("then", "now", "text", "policy"),
    [(*case, policy) for case, policy in zip(OTHERS.values(), OnChange, strict=True)],
    ids=OTHERS,
)
def test_another_class_of_optimizer_is_refused_before_anything_is_touched(
    tmp_path: Path, topic: Topic, then: Optimizer, now: Optimizer, text: str, policy: OnChange
) -> None:
    learn(tmp_path, topic, compiled(then))
    told, untouched = refused(tmp_path, topic, compiled(now), options(policy))
    assert text in told
    assert untouched


# Settings


def test_settings_that_differ_are_logged_and_trainer_settings_cannot_be_restored(tmp_path: Path, topic: Topic) -> None:
    then: dict[str, Any] = {
        "training__batch_size": 8,
        "training__seed": 1,
        "model__args__layers": [8, 8],
        "model__args__gone": 1,
    }
    now: dict[str, Any] = {
        "training__batch_size": 12,
        "training__seed": 1,
        "model__args__layers": [8],
        "training__later": 1,
    }
    learn(tmp_path, topic, mlp, options(**then))
    told, untouched = refused(tmp_path, topic, mlp, options(CHECKPOINT, **now))
    assert "cannot hold training.batch_size, which is 8 in the checkpoint and 12 in the settings" in told
    assert untouched
    run = learn(tmp_path, topic, mlp, options(**now))
    assert [(change.name, change.then, change.now) for change in run.saving.changes] == [
        ("model.args.gone", 1, None),
        ("model.args.layers", [8, 8], [8]),
        ("training.batch_size", 8, 12),
    ]
    run = learn(tmp_path, topic, mlp, options(CHECKPOINT, **{**now, "model__args__layers": [8, 8]}))
    assert [(change.name, change.used) for change in run.saving.changes] == [("model.args.layers", BUILD)]


# Checkpoints from before


@pytest.mark.parametrize(("policy", "rate"), [(BUILD, 1e-5), (CHECKPOINT, 1e-2)])
def test_a_checkpoint_that_does_not_say_loads_and_its_rate_speaks_for_itself(
    tmp_path: Path, topic: Topic, policy: OnChange, rate: float
) -> None:
    old = Run(tmp_path, topic, RigOptions(build=adam(learning_rate=1e-2, beta_1=0.5)))
    state = old.saving._state
    state._parts = tuple(part for part in state._parts if part.name != NAME)
    old.start().leave()
    assert NAME not in old.begun_at.parts
    run = learn(tmp_path, topic, adam(learning_rate=1e-5, beta_1=0.75), options(policy, training__batch_size=12))
    assert run.learner.learning_rate == float32(rate)
    assert [(change.name, change.used) for change in run.saving.changes] == [("optimizer.learning_rate", policy)]


# Bits


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_nothing_differs_nothing_is_touched(
    learner_of: MakeLearner, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = (learner_of(adam(learning_rate=1e-2), replicas=replicas) for _ in range(2))
    theirs, ours = (Hyperparameters(learner.model, options(training__seed=1)) for learner in (source, target))
    state = {part.name: part.snapshot() for part in (*source.parts, theirs)}
    ours.check(state)
    monkeypatch.setattr("millrace.training.model.hyperparameters.assign", lambda *_: pytest.fail("touched"))
    ours.restore(state[NAME])
    assert ours.changes == ()
    assert ours.snapshot() == theirs.snapshot()


def test_the_built_rate_is_set_on_every_replica(learner_of: MakeLearner) -> None:
    source, target = learner_of(adam(learning_rate=1e-2)), learner_of(adam(learning_rate=1e-5), replicas=3)
    theirs, ours = (Hyperparameters(learner.model, options()) for learner in (source, target))
    state = {part.name: part.snapshot() for part in (*source.parts, theirs)}
    for part in (*target.parts[:2], ours):
        part.restore(state[part.name])
    (optimizer,) = optimizers_of(target.model).values()
    copies = backing(optimizer._learning_rate).values
    assert [float(tf.convert_to_tensor(copy)) for copy in copies] == [float32(1e-5)] * 3
