"""The contract of model.py, sentence by sentence: what `validate` says of a model that breaks it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.app.settings import load
from millrace.app.tools.validate import CheckOutcome, CheckResult
from millrace.app.tools.validate.model_check import model_checks

pytestmark = pytest.mark.tensorflow

CONFIG = """\
name: clicks
kafka:   {bootstrap_servers: [127.0.0.1:1], topics: [clicks]}
records: {features: {price: float32, hour: int32}, label: {clicked: float32}}
model:   {build: ./model.py:build_model}
training: {batch_size: 8, replicas: 1, proof: PROOF}
checkpoints: {path: ./checkpoints}
"""
GOOD = """\
import keras
import tensorflow as tf


def build_model():
    price = keras.Input((), name="price")
    hour = keras.Input((), name="hour", dtype="int32")
    looked_up = keras.layers.Embedding(24, 2)(keras.ops.mod(hour, 24))
    hidden = keras.layers.Concatenate()([keras.layers.Reshape((1,))(price), looked_up])
    model = keras.Model({"price": price, "hour": hour}, keras.layers.Dense(1)(hidden))
    model.compile(optimizer="adam", loss="mse")
    return model
"""
SUBCLASS = """\
import keras
import tensorflow as tf


class Learner(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(keras.ops.expand_dims(x["price"], -1))

    BODY


def build_model():
    model = Learner()
    model.compile(optimizer="adam", loss="mse")
    return model
"""
Examine = Callable[..., list[CheckResult]]


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    """Check a model file of this text."""

    def run(model: str, proof: str = "enforce") -> list[CheckResult]:
        (tmp_path / "model.py").write_text(model)
        (tmp_path / "clicks.yaml").write_text(CONFIG.replace("PROOF", proof))
        checks = model_checks(load(tmp_path / "clicks.yaml", {}).settings)
        # Importing model.py is judged in a process of its own: in this one TensorFlow has computed long ago.
        return [check for check in checks if "importing it computes" not in check.detail]

    return run


def complaints(checks: list[CheckResult]) -> list[tuple[str, str]]:
    return [
        (check.outcome, check.name) for check in checks if check.outcome not in (CheckOutcome.OK, CheckOutcome.SKIP)
    ]


def text_of(checks: list[CheckResult]) -> str:
    return " | ".join(check.detail for check in checks if check.outcome in (CheckOutcome.FAIL, CheckOutcome.WARN))


def test_a_model_that_keeps_the_contract_has_no_complaint(examine: Examine) -> None:
    checks = examine(GOOD)
    assert complaints(checks) == []
    assert [check.name for check in checks] == ["model file", "model", "metrics", "state", "proof", "proof"]


def broken(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def stepping(body: str) -> str:
    return SUBCLASS.replace("BODY", body)


PREPROCESS = "\n\ndef preprocess(features, label, weight):\n    "
FILE = {
    "does not import, and where": ("import keras\nimport nothing_of_that_name\n", "ModuleNotFoundError", "(line 2)"),
    "is no Python": ("def build_model(:\n", "SyntaxError", "(line 1)"),
    "lacks the function": (broken("build_model", "make"), "has no function 'build_model'; it has make", ""),
    "wants arguments": (broken("build_model()", "build_model(size)"), "model.args", "size"),
}
MODEL = {
    "raises": (broken("    price", "    raise ValueError('no')\n    price"), "raised ValueError: no (line 6)", ""),
    "is not compiled": (broken('model.compile(optimizer="adam", loss="mse")', "pass"), "is not compiled", "compile("),
    "is no model": (broken("return model", "return 3"), "returned a int, not a keras.Model", ""),
    "scales its loss": (
        broken('optimizer="adam"', "optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())"),
        "LossScaleOptimizer",
        "mixed_bfloat16",
    ),
    "has other inputs": (
        broken('"hour": hour', '"day": hour').replace('name="hour"', 'name="day"'),
        "day: the model wants int32, the schema has nothing",
        "hour: the model wants nothing, the schema has int32",
    ),
    "takes text for a number": (
        broken('name="hour", dtype="int32"', 'name="hour", dtype="string"').replace(
            "keras.ops.mod(hour, 24)", "keras.layers.Hashing(24)(hour)"
        ),
        "hour: the model wants string, the schema has int32",
        "",
    ),
    "has inputs of another shape": (
        broken('keras.Input((), name="price")', 'keras.Input((3,), name="price")').replace(
            "Reshape((1,))", "Reshape((3,))"
        ),
        "price: the model wants float32[3], the schema has float32",
        "",
    ),
    "has a preprocess that returns too little": (
        GOOD + PREPROCESS + "return features, label",
        "it must return (features by name, label, weight)",
        "",
    ),
    "has a preprocess that drops rows": (
        GOOD + PREPROCESS + "return {k: v[1:] for k, v in features.items()}, label, weight",
        "it must return as many rows as it was given",
        "",
    ),
    "has a preprocess that is no graph": (
        GOOD + PREPROCESS + "return {**features, 'price': features['price'].numpy()}, label, weight",
        "preprocess: ",
        "numpy",
    ),
    "does not run on its rows": (stepping("").replace('x["price"]', 'x["cost"]'), "KeyError: ", "cost"),
}
STATE = {
    "keeps state outside of its layers": (
        stepping("counter = tf.Variable(0.0)\n\n    def train_step(self, data):\n"
                 "        self.counter.assign_add(1.0)\n        return super().train_step(data)")
        .replace("self.dense = ", "object.__setattr__(self, '_hidden', None)\n        self.dense = "),
        "no checkpoint would hold",
        "add_weight",
    ),
    "has a train_step that raises": (
        stepping("def train_step(self, data):\n        raise TypeError('odd')"),
        "its train_step cannot be traced",
        "",
    ),
}  # fmt: skip
PROOF = {
    "normalises over the batch": (
        broken("keras.layers.Dense(1)(hidden)", "keras.layers.Dense(1)(keras.layers.BatchNormalization()(hidden))"),
        "absent rows change nothing",
        "LayerNormalization or GroupNormalization",
    ),
    "takes the mean over present rows": (
        broken('loss="mse"', "loss=keras.losses.MeanSquaredError(reduction='mean_with_sample_weight')"),
        "a present row pulls with 1/B",
        "sum_over_batch_size",
    ),
    "ignores the weights": (
        stepping(
            "def train_step(self, data):\n        x, y, _ = data\n        with tf.GradientTape() as tape:\n"
            "            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))\n"
            "        grads = tape.gradient(loss, self.trainable_variables)\n"
            "        self.optimizer.apply(grads, self.trainable_variables)\n        return {'loss': loss}"
        ),
        "absent rows change nothing",
        "ignores sample_weight",
    ),
    "has a preprocess that looks at neighbours": (
        GOOD + PREPROCESS
        + "return {**features, 'price': features['price'] - tf.reduce_mean(features['price'])}, label, weight",
        "preprocess makes each row of its own row alone",
        "feature 'price'",
    ),
}  # fmt: skip


# Keras warns of what it cannot build by itself, and then it raises all the same.
@pytest.mark.filterwarnings("ignore:.*unbuilt state:UserWarning")
@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name, cases in (("model file", FILE), ("model", MODEL), ("state", STATE), ("proof", PROOF))
        for case in cases
    ],
)
def test_a_model_that_breaks_the_contract_is_told_how(examine: Examine, name: str, case: str) -> None:
    model, *said = {**FILE, **MODEL, **STATE, **PROOF}[case]
    checks = examine(model)
    assert ("fail", name) in complaints(checks)
    assert {failed for outcome, failed in complaints(checks) if outcome == "fail"} == {name}
    assert all(words in text_of(checks) for words in said), text_of(checks)
    assert max(check.exit_code for check in checks) == 2


ADVICE = {
    "a number that an embedding lacks": (broken("keras.ops.mod(hour, 24)", "hour"), "'hour' is far out makes it raise"),
    "a learning rate that decays to nothing": (
        broken(
            'optimizer="adam"',
            "optimizer=keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-2, 1000, 0.9))",
        ),
        "the learning rate falls from 0.01 to 0",
    ),
    "our own modules": (broken("import keras\n", "import keras\nimport millrace\n"), "it imports millrace"),
    "random numbers in preprocess": (
        GOOD + PREPROCESS + "return {**features, 'price': features['price'] * tf.random.uniform([])}, label, weight",
        "not shown that a record weighs the same everywhere: preprocess",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ADVICE)
def test_what_a_start_accepts_and_a_stream_punishes_is_warned_of(examine: Examine, case: str) -> None:
    model, said = ADVICE[case]
    checks = examine(model)
    assert {outcome for outcome, _ in complaints(checks)} == {"warn"}
    assert said in text_of(checks)


def test_a_proof_that_is_only_to_warn_fails_nobody(examine: Examine) -> None:
    model, *_ = PROOF["normalises over the batch"]
    (failed,) = [check for check in examine(model) if check.outcome is CheckOutcome.FAIL]
    (warned,) = [check for check in examine(model, proof="warn") if check.outcome is not CheckOutcome.OK]
    assert (warned.outcome, warned.name) == (CheckOutcome.WARN, failed.name)
