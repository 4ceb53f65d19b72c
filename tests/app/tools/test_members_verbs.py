"""`training.members` through the verbs: pretrained with windows, exported, served, forked, and its weights written."""

import json
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.settings import load
from millrace.training.checkpoints import CheckpointStore, Folder
from tests.app.tools.serve.server_rig import serving
from tests.consumers.archive import records

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.nightly,  # each verb is in the gate with one model, and a mixture's export and fork
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of h5py
]
CONFIG: dict[str, Any] = {
    "name": "clicks",
    "kafka": {"bootstrap_servers": ["127.0.0.1:1"], "topics": ["clicks"]},
    "records": {"features": {"user": "int32", "x": "float32"}, "label": {"y": "float32"}},
    "windows": {"by": "user", "of": ["x"], "length": 4},
    "model": {"build": "./model.py:build_model"},
    "training": {"batch_size": 16, "passes": 2, "members": {"recent": 48, "since_drift": 500, "once": True}},
    "checkpoints": {"path": "./checkpoints"},
    "archive": {"path": "./archive"},
    "export": {"path": "./exports", "formats": ["saved_model", "onnx"]},
}
MODEL = """
import keras


def build_model():
    user, x = keras.Input((), name="user", dtype="int32"), keras.Input((4,), name="x")
    hidden = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()([keras.layers.Embedding(8, 2)(user), x]))
    model = keras.Model({"user": user, "x": x}, keras.layers.Dense(1, "sigmoid", name="y")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model
"""
RECORDS, TURN = 1600, 1200
"""After so many of the records the labels mean the opposite."""


def typed(folder: Path, *words: str) -> str:
    with chdir(folder):
        result = CliRunner().invoke(application, [*words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_mixture_is_pretrained_exported_served_and_forked_and_its_weights_are_written(tmp_path: Path) -> None:
    import onnxruntime
    import tensorflow as tf

    from millrace.app.service.model_setup import load_model
    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of

    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "clicks.yaml").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(3)
    xs = random.normal(size=RECORDS).round(3).tolist()
    rows = [{"user": at % 8, "x": x, "y": int((x > 0) == (at < TURN))} for at, x in enumerate(xs)]
    chunk = replace(records.chunk(0, RECORDS), values=[json.dumps(row).encode() for row in rows])
    records.shard_of(tmp_path / "archive", [chunk])
    typed(tmp_path, "pretrain", "--shuffle", "0", "-c", "clicks.yaml")
    state = CheckpointStore(Folder(tmp_path / "checkpoints" / "clicks")).load(0)
    assert state["model"].arrays["members/restarts"] == 1

    loaded = load(tmp_path / "clicks.yaml", {})
    version = export_checkpoint(loaded, None, folder_of(loaded.settings)).folder
    users, windows = np.arange(8, dtype=np.int32), random.normal(size=(8, 4)).astype(np.float32)
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    answers = signature(user=tf.constant(users), x=tf.constant(windows))["y"].numpy()
    session = onnxruntime.InferenceSession(str(version / "model.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["y"], {"user": users, "x": windows})[0], answers, atol=1e-5)

    typed(tmp_path, "checkpoints", "weights", "0", "mixed.weights.h5", "-c", "clicks.yaml")
    mixture = load_model(loaded.settings).build()
    mixture.load_weights(tmp_path / "mixed.weights.h5")
    np.testing.assert_allclose(np.asarray(mixture({"user": users, "x": windows})), answers, atol=1e-6)
    first, second, _ = (np.asarray(one({"user": users, "x": windows})) for one in mixture.members)
    assert np.abs(first - second).max() > 0.01

    with serving(tmp_path, "clicks", serve__listen="127.0.0.1:0", serve__drain="0s") as server:
        server.answers_with(0)
        instances = [{"user": int(user), "x": x.tolist()} for user, x in zip(users, windows, strict=True)]
        said = server.predict({"instances": instances}).json()["predictions"]
        np.testing.assert_allclose(np.asarray(said).reshape(answers.shape), answers, atol=1e-6)

    (tmp_path / "other.yaml").write_text(json.dumps({**CONFIG, "name": "other"}))
    typed(tmp_path, "fork", "clicks@0", "--as", "other", "-c", "other.yaml")
    forked = CheckpointStore(Folder(tmp_path / "checkpoints" / "other")).load(0)
    for part in ("model", "optimizer"):
        assert forked[part].arrays.keys() == state[part].arrays.keys()
        for key, array in state[part].arrays.items():
            np.testing.assert_array_equal(forked[part].arrays[key], array)
