"""A remembered proof: it stands for the very same model, rows, code and machine, and for nothing else."""

import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.pipelines.stream.record_sample import RecordSample
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.model.learner import Learner
from millrace.training.model.probes import ProbeRows
from millrace.training.model.proof.proof import Finding
from millrace.training.model.proof.remembered_proof import RememberedProof
from tests.training.conftest import BATCH, FEATURES, SCHEMA, MakeLearner, largest_difference, mlp, state_of

pytestmark = pytest.mark.tensorflow
TOLD = {"config_sha256": "1f3a", "millrace": "1.0"}
HOLDS = [Finding(claim="a record weighs the same everywhere", holds=True)]


def remembered(path: Path, learner: Learner, told: Any = TOLD) -> bool:
    """Return whether another start takes the proof for that of this learner."""
    return RememberedProof(path / "proof.json", told).holds(learner)


def proven(path: Path, learner: Learner, findings: list[Finding] | None = None) -> None:
    """Remember a proof, as the first start of a learner does."""
    proof = RememberedProof(path / "proof.json", TOLD)
    assert not proof.holds(learner)
    proof.keep(learner, HOLDS if findings is None else findings)


def assigned(variable: Any) -> None:
    variable.assign(variable + 1e-6)


def test_what_held_is_remembered_for_the_same_learner_and_leaves_no_trace(
    tmp_path: Path, learner_of: MakeLearner
) -> None:
    learner = learner_of()
    before = state_of(learner)
    proven(tmp_path, learner)
    assert remembered(tmp_path, learner)
    assert largest_difference(state_of(learner), before) == 0.0
    assert not learner.witness.counts()


def test_so_it_is_with_two_replicas(tmp_path: Path, learner_of: MakeLearner) -> None:
    learner = learner_of(replicas=2)
    proven(tmp_path, learner)
    assert remembered(tmp_path, learner)


def test_another_config_processor_or_weight_is_proven_again(
    tmp_path: Path, learner_of: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of()
    proven(tmp_path, learner)
    assert not remembered(tmp_path, learner, {**TOLD, "config_sha256": "77aa"})
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "another")
        assert not remembered(tmp_path, learner)
    assert remembered(tmp_path, learner)
    assigned(learner.model.trainable_variables[0])
    assert not remembered(tmp_path, learner)


def test_another_graph_of_the_same_weights_is_proven_again(tmp_path: Path, fresh_learner_of: MakeLearner) -> None:
    def build(activation: str) -> Any:
        inputs = keras.Input((FEATURES,), name="x")
        model = keras.Model(inputs, keras.layers.Dense(1, activation=activation)(inputs))
        model.compile(optimizer="sgd", loss="mse")
        return model

    proven(tmp_path, fresh_learner_of(lambda: build("tanh")))
    kept = unseal((tmp_path / "proof.json").read_bytes())["proven"]
    other = fresh_learner_of(lambda: build("sigmoid"))
    assert not remembered(tmp_path, other)
    (tmp_path / "proof.json").unlink()
    proven(tmp_path, other)
    now = unseal((tmp_path / "proof.json").read_bytes())["proven"]
    assert {name for name in kept if kept[name] != now[name]} == {"model"}


def test_other_rows_to_prove_on_are_proven_again(tmp_path: Path, learner_of: MakeLearner) -> None:
    def sample(seed: int) -> RecordSample:
        random = np.random.default_rng(seed)
        x = random.normal(size=(40, FEATURES)).astype(np.float32)
        return RecordSample(features={"x": x}, labels={"y": (x[:, 0] > 0).astype(np.float32)}, rows=40)

    learner = learner_of()
    learner.probes = ProbeRows(SCHEMA, BATCH, (lambda: sample(1),))
    proven(tmp_path, learner)
    assert remembered(tmp_path, learner)
    learner.probes = ProbeRows(SCHEMA, BATCH, (lambda: sample(2),))
    assert not remembered(tmp_path, learner)


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Return a function that writes a file which is loaded as a module, as a package of the user's own is."""
    file = tmp_path / "helping_hand.py"
    file.write_text("ONE = 1\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    sys.modules[file.stem] = importlib.util.module_from_spec(spec)

    def write(text: str) -> None:
        file.write_text(text)

    yield write
    del sys.modules[file.stem]


def test_an_edited_file_and_more_code_are_proven_again(
    tmp_path: Path, learner_of: MakeLearner, helper: Callable[[str], None]
) -> None:
    learner = learner_of()
    proven(tmp_path, learner)
    assert remembered(tmp_path, learner)
    helper("ONE = 2\n")
    assert not remembered(tmp_path, learner)
    helper("ONE = 1\n")
    assert remembered(tmp_path, learner)
    another = tmp_path / "another_hand.py"
    another.touch()
    sys.modules[another.stem] = importlib.util.module_from_spec(
        importlib.util.spec_from_file_location(another.stem, another)  # type: ignore[arg-type]  # it is there
    )
    try:
        assert not remembered(tmp_path, learner)
    finally:
        del sys.modules[another.stem]


def test_a_call_that_comes_out_otherwise_is_proven_again(tmp_path: Path, learner_of: MakeLearner) -> None:
    learner = learner_of()
    proven(tmp_path, learner)
    file = tmp_path / "proof.json"
    file.write_bytes(seal({**unseal(file.read_bytes()), "outcome": "0" * 64}))
    assert not remembered(tmp_path, learner)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda raw: raw[:100],
    "edited": lambda raw: raw.replace(b"outcome", b"outcoma"),
    "empty": lambda _raw: b"",
    "no text": lambda _raw: b"\xff",
    "a list": lambda _raw: b"[]",
    "of another kind": lambda _raw: seal({"proven": [], "files": 3, "outcome": None}),
    "unreadable": lambda raw: seal({**unseal(raw), "files": "bm90IHppcHBlZA=="}),
}


def test_a_damaged_or_foreign_file_is_proven_again_and_replaced(tmp_path: Path, learner_of: MakeLearner) -> None:
    learner, file = learner_of(), tmp_path / "proof.json"
    proven(tmp_path, learner)
    whole = file.read_bytes()
    for what, damage in DAMAGE.items():
        file.write_bytes(damage(whole))
        proven(tmp_path, learner)
        assert json.loads(file.read_bytes()) == json.loads(whole), what
    file.unlink()
    proven(tmp_path, learner)


@pytest.mark.parametrize("holds", [False, None])
def test_what_does_not_hold_or_was_not_shown_is_not_remembered(
    tmp_path: Path, learner_of: MakeLearner, holds: bool | None
) -> None:
    learner, file = learner_of(), tmp_path / "proof.json"
    proven(tmp_path, learner)
    again = RememberedProof(file, {})
    assert not again.holds(learner)
    again.keep(learner, [*HOLDS, Finding(claim="replicas agree", holds=holds)])
    assert not file.exists()
    again.keep(learner, [])
    assert not file.exists()


class CallsBack(keras.layers.Layer):
    """Runs Python in the graph, which does not say what."""

    def call(self, x: Any) -> Any:
        doubled = tf.numpy_function(lambda values: values, [x], tf.float32)
        return x + 0.0 * tf.stop_gradient(tf.ensure_shape(doubled, x.shape))


class LooksUp(keras.layers.Layer):
    """Looks its rows up in a table, whose contents the graph does not say."""

    def __init__(self) -> None:
        super().__init__()
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([0.0, 0.5]))
        self.table = tf.lookup.StaticHashTable(pairs, 0.0)

    def call(self, x: Any) -> Any:
        return x + self.table.lookup(tf.cast(tf.reduce_sum(x, axis=1, keepdims=True) > 0, tf.int64))


@pytest.mark.parametrize("layer", [CallsBack, LooksUp])
def test_a_model_whose_graph_does_not_say_all_is_proven_by_each_start(
    tmp_path: Path, fresh_learner_of: MakeLearner, layer: type
) -> None:
    learner = fresh_learner_of(lambda: mlp(layer()))
    proven(tmp_path, learner)
    assert not (tmp_path / "proof.json").exists()
