"""A pretraining with a golden set, in this process: it validates on the set, and learns none of it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.app.settings import load
from millrace.app.tools.pretrain.pretrain import PretrainOptions, pretrain
from millrace.app.tools.pretrain.shard_sources import ShardSource, from_archive
from millrace.app.tools.validate.check import CheckOutcome
from millrace.app.tools.validate.model_check import golden_check
from millrace.training.model.golden.golden_records import GoldenRecords
from tests.consumers.archive import records

pytestmark = pytest.mark.tensorflow
CONFIG: dict[str, Any] = {
    "name": "clicks",
    "kafka": {"bootstrap_servers": ["127.0.0.1:1"], "topics": ["clicks"]},
    "records": {"format": "json", "features": {"x": "float32"}, "label": {"y": "float32"}},
    "model": {"build": "./model.py:build_model"},
    "training": {"batch_size": 16, "batches_per_call": 2},
    "checkpoints": {"path": "./checkpoints"},
    "golden": {"path": "./golden"},
}
MODEL = """
import keras


def build_model():
    x = keras.Input((), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.Reshape((1,))(x)))
    model.compile("sgd", "mse", metrics=["mae"])
    return model
"""
NEVER = """class Never(keras.metrics.MeanSquaredError):
    def result(self):
        return super().result() * float("nan")


"""
SHARDS = ((0, 200), (200, 300), (300, 500))


class Told:
    """What a pretraining reports."""

    def dealt(self, training: ShardSource, validation: ShardSource | None, golden: GoldenRecords | None = None) -> None:
        self.rows = training.rows, validation, golden and golden.rows

    def say(self, line: str) -> None: ...

    def began(self, epoch: int, rows: int) -> None: ...

    def advanced(self, rows: int, loss: float) -> None: ...

    def ended(self, epoch: Any) -> None: ...


@pytest.mark.slow
def test_a_pretraining_validates_on_the_golden_set_and_learns_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "clicks.yaml").write_text(json.dumps(CONFIG))
    for start, end in SHARDS:
        values = [json.dumps({"x": at / 500, "y": at / 250}).encode() for at in range(start, end)]
        shard = records.shard_of(tmp_path / "archive", [replace(records.chunk(start, end), values=values)])
        if start == 200:
            (tmp_path / "golden" / "clicks" / "0").mkdir(parents=True)
            for file in (records.file_of(shard), records.facts_of(shard)):
                shutil.copy(file, tmp_path / "golden" / "clicks" / "0")
    loaded, told = load(tmp_path / "clicks.yaml", {}), Told()
    checked = golden_check(loaded.settings, None)
    assert (checked.outcome, checked.detail) == (CheckOutcome.OK, f"100 records of {tmp_path / 'golden'}")
    result = pretrain(loaded, from_archive(tmp_path / "archive", ["clicks"]), PretrainOptions(), told)
    (epoch,) = result.pretrained.epochs
    assert told.rows == (500, None, 100)
    assert (epoch.learnt, epoch.left_out) == (400, {"golden": 100})
    golden = result.manifest.golden
    assert golden is not None
    assert golden.rows == result.manifest.provenance["pretrained"]["validation_rows"] == 100
    assert golden.values == {name: pytest.approx(epoch.figures[f"val_{name}"]) for name in ("loss", "mae")}


def test_a_figure_that_is_nan_is_left_out_of_the_manifest_and_loses_nothing(tmp_path: Path) -> None:
    model = MODEL.replace('["mae"]', '["mae", Never(name="never")]').replace(
        "def build_model", f"{NEVER}def build_model"
    )
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "clicks.yaml").write_text(json.dumps({key: CONFIG[key] for key in CONFIG if key != "golden"}))
    values = [json.dumps({"x": at / 500, "y": at / 250}).encode() for at in range(100)]
    records.shard_of(tmp_path / "archive", [replace(records.chunk(0, 100), values=values)])
    source = from_archive(tmp_path / "archive", ["clicks"])
    result = pretrain(load(tmp_path / "clicks.yaml", {}), source, PretrainOptions(validation=0.0), Told())
    assert "never" in result.pretrained.epochs[0].figures
    assert result.manifest.provenance["pretrained"]["figures"].keys() == {"loss", "mae"}
