"""`millrace validate --eager`: the model's functions run as plain Python, and a debugger stops in them."""

import sys
from pathlib import Path

import pytest
import tensorflow as tf

from millrace.app.settings import load
from millrace.app.tools.validate import CheckOutcome
from millrace.app.tools.validate.eager_check import eager_check
from tests.app.checkpoint_history import config_in

pytestmark = pytest.mark.tensorflow
MODEL = """\
import keras
import tensorflow as tf


@tf.function
def doubled(price):
    return 2 * price.numpy()  # a tensor of a traced function has no value


def preprocess(features, label, weight):
    breakpoint()
    assert features["price"].numpy().min() > LEAST
    return {"price": doubled(features["price"])}, label, weight


def augment(features, label, weight):
    breakpoint()
    return {"price": features["price"] * keras.random.uniform((8,))}, label, weight


class Stepped(keras.Model):
    def train_step(self, data):
        breakpoint()
        assert data[0]["price"].numpy().shape == (8,)
        return super().train_step(data)


def build_model():
    price = keras.Input((), name="price")
    model = Stepped({"price": price}, keras.layers.Dense(1)(keras.layers.Reshape((1,))(price)))
    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    return model
"""


def test_a_debugger_stops_in_each_function_and_an_error_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(config_in(tmp_path, "training: {batch_size: 8}\n"), {}).settings
    stopped = list[str]()
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append(sys._getframe(1).f_code.co_name))
    (tmp_path / "model.py").write_text(MODEL.replace("LEAST", "0"))
    check = eager_check(settings)
    assert (check.outcome, stopped) == (CheckOutcome.OK, ["preprocess", "augment", "train_step"]), check
    said = "preprocess, augment and one training step ran as plain Python on 8 made-up rows, so print and breakpoint()"
    assert check.detail.startswith(said)
    (tmp_path / "model.py").write_text(MODEL.replace("LEAST", "5"))
    check = eager_check(settings)
    assert check.outcome is CheckOutcome.FAIL
    assert check.detail == "preprocess raised AssertionError: no message (line 12)"
    assert not tf.config.functions_run_eagerly()
