"""`export.formats: [saved_model, onnx]`: ONNX Runtime answers what the model answers, or nothing is published."""

import json
from pathlib import Path

import numpy as np
import pytest

from millrace.app.settings import Loaded
from millrace.app.tools.export.export import export_checkpoint
from millrace.app.tools.export.export_folder import folder_of
from millrace.training.errors import ExportError, ExportRefusedError
from millrace.training.model.export.onnx import FILE as ONNX_FILE
from millrace.training.model.export.onnx import OnnxWriter
from tests.app.tools.export.exported_model import project
from tests.training.checkpoints.small_volume import small_volume

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
PAGE = 4096
"""Of the file systems that hold it in memory."""
CONFIG = """
name: clicks
kafka: {bootstrap_servers: [127.0.0.1:1], topics: [clicks]}
records:
  features: {price: float32, hour: int32, seen: {dtype: float32, shape: [4]}}
  label: {kind: {dtype: int32, one_of: [cat, dog, cow]}}
model: {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
export: {path: ./exports, formats: [saved_model, onnx]}
"""
MODEL = """
import keras
import tensorflow as tf


def preprocess(features, label, weight):
    return {**features, "price": tf.math.log(1 + features["price"])}, label, weight


def build_model():
    price, hour = keras.Input((), name="price"), keras.Input((), name="hour", dtype="int32")
    seen = keras.Input((4,), name="seen")
    column = keras.layers.Reshape((1,))
    parts = [column(price), keras.layers.Embedding(24, 3)(hour), keras.layers.BatchNormalization()(seen)]
    hidden = keras.layers.LayerNormalization()(keras.layers.Dense(16, "relu")(keras.layers.Concatenate()(parts)))
    kind = keras.layers.Dense(3, activation="softmax")(keras.layers.Dropout(0.5)(hidden))
    model = keras.Model({"price": price, "hour": hour, "seen": seen}, kind)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model
"""
HASHED = MODEL.replace(
    "keras.layers.Embedding(24, 3)(hour)", "keras.layers.Embedding(9, 3)(keras.layers.Hashing(9)(hour))"
)
LOG1P = MODEL.replace("tf.math.log(1 + features", "tf.math.log1p((features").replace('"price"])}', '"price"]))}')


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """A version with both formats, each proven by a real fresh process."""
    loaded = project(tmp_path_factory.mktemp("onnx"), CONFIG, MODEL)
    return loaded, export_checkpoint(loaded, None, folder_of(loaded.settings)).folder


def test_onnx_runtime_answers_raw_features_by_their_names_as_the_saved_model_does(
    exported: tuple[Loaded, Path],
) -> None:
    import onnxruntime
    import tensorflow as tf

    random = np.random.default_rng(3)
    rows = {
        "price": random.uniform(0, 9, 64).astype(np.float32),
        "hour": random.integers(0, 24, 64).astype(np.int32),
        "seen": random.normal(size=(64, 4)).astype(np.float32),
    }
    session = onnxruntime.InferenceSession(str(exported[1] / ONNX_FILE), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    answers = dict(zip(names, session.run(names, rows), strict=True))
    signature = tf.saved_model.load(str(exported[1])).signatures["serving_default"]
    expected = signature(**{name: tf.constant(column) for name, column in rows.items()})
    assert answers.keys() == expected.keys() == {"kind", "kind_class"}
    np.testing.assert_allclose(answers["kind"], expected["kind"].numpy(), atol=1e-5)
    assert [text.encode() for text in answers["kind_class"].tolist()] == expected["kind_class"].numpy().tolist()


def test_a_manifest_holds_the_proof_and_the_hash_of_the_file(exported: tuple[Loaded, Path]) -> None:
    found = json.loads((exported[1] / "millrace.json").read_text())
    assert found["onnx"]["rows"] == 256
    assert 0 <= found["onnx"]["max_difference"] <= found["onnx"]["tolerance"] < 1e-5
    assert found["files"][ONNX_FILE]["bytes"] == (exported[1] / ONNX_FILE).stat().st_size
    manifest = folder_of(exported[0].settings).manifest(2)
    assert manifest.onnx is not None
    assert manifest.onnx.tolerance == found["onnx"]["tolerance"]


@pytest.mark.usefixtures("forked_modules")
@pytest.mark.parametrize(
    ("model", "operation"),
    [(HASHED, "StringToHashBucketFast"), pytest.param(LOG1P, "Log1p", marks=pytest.mark.nightly)],
    ids=["layer", "preprocess"],
)
def test_what_onnx_has_no_operator_for_is_refused_in_a_line_and_leaves_nothing(
    tmp_path: Path, model: str, operation: str
) -> None:
    """The converter writes such a file, and calls that a success."""
    loaded = project(tmp_path, CONFIG, model)
    folder = folder_of(loaded.settings)
    wanted = rf"a fresh process cannot use model\.onnx: .*{operation}.*, write export.formats: \[saved_model\]$"
    with pytest.raises(ExportRefusedError, match=wanted):
        export_checkpoint(loaded, None, folder)
    assert (folder.numbers(), folder.leftovers()) == ([], [])


@pytest.mark.nightly  # every writer is refused so in the gate
@pytest.mark.usefixtures("forked_modules")
def test_a_file_that_answers_otherwise_is_not_published(
    exported: tuple[Loaded, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the converter would write if it were wrong: the same graph with the weights of another model."""
    other = exported[1] / ONNX_FILE
    loaded = project(tmp_path, CONFIG, MODEL)
    monkeypatch.setattr(OnnxWriter, "write", lambda _, __, below: (below / ONNX_FILE).write_bytes(other.read_bytes()))
    folder = folder_of(loaded.settings)
    with pytest.raises(ExportRefusedError, match=r"ONNX Runtime answers the output 'kind.*' of model\.onnx otherwise"):
        export_checkpoint(loaded, None, folder)
    assert folder.numbers() == []


@pytest.mark.usefixtures("forked_modules")
@pytest.mark.parametrize("fits", [(), ("saved_model.pb", "fingerprint.pb", "variables")], ids=["nothing", "SavedModel"])
def test_a_full_disk_is_told_in_a_line_whoever_meets_it_and_leaves_nothing(
    exported: tuple[Loaded, Path], tmp_path: Path, fits: tuple[str, ...]
) -> None:
    written = [path for path in exported[1].rglob("*") if path.relative_to(exported[1]).parts[0] in fits]
    pages = sum(-(-path.stat().st_size // PAGE) for path in written if path.is_file())
    with small_volume(tmp_path / "exports", (pages + 1) * PAGE):
        loaded = project(tmp_path, CONFIG, MODEL)
        folder = folder_of(loaded.settings)
        told = "export 2 could not be written below .*: No space left on device; make room; nothing of it is kept"
        with pytest.raises(ExportError, match=told):
            export_checkpoint(loaded, None, folder)
        assert (folder.numbers(), folder.leftovers()) == ([], [])
