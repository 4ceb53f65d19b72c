"""Rows that a pretraining keeps in a folder: a later run reads them if they are what it would make, or says why not."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.cli.pretrain import EpochLines
from millrace.app.settings import Loaded, load
from millrace.app.tools.pretrain.inputs import InputOptions
from millrace.app.tools.pretrain.pretrain import PretrainOptions, Result, pretrain
from millrace.app.tools.pretrain.row_cache import cache_folder, kept_rows, made_of
from millrace.app.tools.pretrain.shard_sources import from_archive, split
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.files.visits import Refusals
from millrace.training.model.setup.model_file import ModelFile
from millrace.training.model.setup.model_file import load as load_model
from tests.consumers.archive import records

pytestmark = pytest.mark.tensorflow
CONFIG: dict[str, Any] = {
    "kafka": {"bootstrap_servers": ["127.0.0.1:1"], "topics": ["clicks"]},
    "records": {"format": "json", "features": {"x": "float32"}, "label": {"y": "float32"}},
    "model": {"build": "./model.py:build_model"},
    "training": {"batch_size": 16, "batches_per_call": 2},
    "checkpoints": {"path": "./checkpoints"},
    "archive": {"path": "./archive"},
}
MODEL = """
import keras

from rows import preprocess

def build_model():
    x = keras.Input((), name="x")
    y = keras.layers.Dense(1)(keras.layers.Reshape((1,))(x))
    model = keras.Model({"x": x}, y)
    model.compile("sgd", "mse")
    return model
"""
ROWS = """
import tensorflow as tf

def note(x):
    with open(%r, "a") as file:
        file.write("called\\n")
    return x

def preprocess(features, label, weight):
    x = tf.numpy_function(note, [features["x"]], tf.float32)
    x.set_shape([None])
    return {"x": x / 1000}, label, weight
"""
BAD = 31


@dataclass
class Project:
    """A folder with a config, a model and an archive, and how often `preprocess` was called since the last look."""

    path: Path
    looked: int = field(default=0)

    def load(self, name: str = "clicks", **changes: Any) -> Loaded:
        (self.path / f"{name}.yaml").write_text(json.dumps({**CONFIG, "name": name, **changes}))
        return load(self.path / f"{name}.yaml", {})

    def archive(self, first: int, end: int) -> None:
        chunk = records.chunk(first, end, [*range(first, end)], Partition("clicks", 0))
        values = [json.dumps({"x": at} | ({} if at == BAD else {"y": 1})).encode() for at in range(first, end)]
        records.shard_of(self.path / "archive", [replace(chunk, values=values)], "parquet")

    def calls(self) -> int:
        calls = self.path / "calls"
        found = len(calls.read_text().splitlines()) if calls.exists() else 0
        found, self.looked = found - self.looked, found
        return found

    def run(self, name: str, **options: Any) -> Result:
        found = self.load(name)
        source = from_archive(self.path / "archive", found.settings.kafka.topics)
        inputs = InputOptions(cache=str(self.path / "cache"))
        with EpochLines(2, quiet=False) as lines:
            return pretrain(found, source, PretrainOptions(epochs=2, inputs=inputs, **options), lines)

    def facts(self, options: InputOptions, **changes: Any) -> Mapping[str, Any]:
        settings = self.load(**changes).settings
        training, validation = split(from_archive(self.path / "archive", ["clicks"]), None)
        model = load_model(ModelFile.parse("model.py:build_model", self.path))
        return made_of(training, validation, settings, options, model.preprocess)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "rows.py").write_text(ROWS % str(tmp_path / "calls"))
    made = Project(tmp_path)
    made.archive(0, 400)
    return made


@pytest.mark.slow
@pytest.mark.row(35)
def test_a_later_run_reads_the_rows_that_an_earlier_one_has_kept(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    first = project.run("one", profile=project.path / "traces")
    said = capsys.readouterr().out
    assert "\nslowest is " in said
    assert all(stage in said for stage in ("reading", "decoding", "shuffling", "preprocess"))
    assert list((project.path / "traces").rglob("*.xplane.pb"))
    made = project.calls()
    (project.path / "model.py").write_text(MODEL.replace("Dense(1)", "Dense(1, use_bias=False)"))
    second = project.run("two")
    again = project.calls()
    assert f"the rows of an earlier run are read from {project.path / 'cache'}" in capsys.readouterr().out
    assert again < made, "once for the proof of the model, and for no record"
    for epoch in [*first.pretrained.epochs, *second.pretrained.epochs]:
        assert epoch.visited.all
        assert epoch.learnt == 359
        assert epoch.set_aside == {"missing": 1}, "known without decoding"


def hold(project: Project, folder: Path, options: InputOptions, *, whole: bool = True, **changes: Any) -> list[str]:
    """Hold a folder as a run does, complete or not; return what was said."""
    said = list[str]()
    facts = partial(project.facts, options, **changes)
    with kept_rows(folder, facts, refusals := Refusals(), said.append):
        if not said:
            (folder / "epoch.index").touch()
    if whole:
        stored = json.loads((folder / "made-of.json").read_text())
        (folder / "made-of.json").write_text(json.dumps({**stored, "refused": refusals.saved()}))
    return said


def test_rows_of_other_data_settings_or_code_are_made_again_with_the_reason(project: Project) -> None:
    folder, options = project.path / "cache", InputOptions()

    def reason(options: InputOptions = options, **changes: Any) -> str:
        hold(project, folder, InputOptions())  # as it was
        hold(project, folder, InputOptions())
        (said,) = hold(project, folder, options, **changes)
        return said.partition("made again: ")[2] or said

    assert hold(project, folder, options) == []
    assert "are read from" in reason()
    assert reason(replace(options, shuffle=7)) == "--shuffle: 65536 before, and 7 now"
    training = CONFIG["training"]
    assert reason(training=training | {"batch_size": 8}) == "training.batch_size: 16 before, and 8 now"
    fields = CONFIG["records"] | {"features": {"x": {"dtype": "float32", "max": 5}}}
    assert reason(records=fields) == "the section records changed"
    assert "are read from" in reason(records=CONFIG["records"] | {"dead_letters": {"topic": "bad"}})
    fields = CONFIG["records"] | {"features": {"x": "float32", "who": "string"}}
    shaped = reason(windows={"by": "who", "length": 2}, records=fields)
    assert shaped == "with windows a run has to see the records themselves"
    hold(project, folder, options)
    project.archive(400, 500)
    assert hold(project, folder, options)[0].endswith("made again: the files changed")
    code = project.path / "rows.py"
    code.write_text(code.read_text().replace("1000", "999"))
    (said,) = hold(project, folder, options)
    assert said.endswith("made again: the code of preprocess changed")


def test_a_preprocess_that_is_installed_elsewhere_counts_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = project.path.parent / "lib"
    lib.mkdir()
    shared = lib / "rows_shared_by_teams.py"
    shared.write_text("def preprocess(features, label, weight):\n    return features, label, weight\n")
    monkeypatch.syspath_prepend(str(lib))
    model = project.path / "model.py"
    model.write_text(model.read_text().replace("from rows import", "from rows_shared_by_teams import"))
    before, again = project.facts(InputOptions()), project.facts(InputOptions())
    assert before == again
    shared.write_text(shared.read_text() + "# of another release\n")
    after = project.facts(InputOptions())
    assert [name for name in before if before[name] != after[name]] == ["the code of preprocess"]


def test_what_is_refused_and_left_out_is_the_same_to_a_later_run() -> None:
    before, after = Refusals(), Refusals()
    before.note(2, [(17, Reason.MISSING), (3, Reason.BAD_IMAGE), (4, Reason.MISSING)])
    before.filter(0, range(40, 60), np.array([41, 59]))
    before.leave_out(0, range(40, 60), [(44, "windows")])
    after.load(json.loads(json.dumps(before.saved())))
    assert after.by_reason() == before.by_reason() == {Reason.MISSING: 2, Reason.BAD_IMAGE: 1}
    assert after.by_setting() == before.by_setting() == {"where": 2, "windows": 1}
    for shard in range(3):
        assert sorted(after.of(shard)) == sorted(before.of(shard))


def test_rows_that_a_killed_run_has_left_are_made_again(project: Project) -> None:
    folder = project.path / "cache"
    hold(project, folder, InputOptions(), whole=False)
    (folder / "epoch.lockfile").touch()
    assert hold(project, folder, InputOptions()) == [f"the rows in {folder} are made again: they are not complete"]
    assert not (folder / "epoch.lockfile").exists()


def test_rows_of_which_a_killed_run_has_removed_some_are_not_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, unlink = project.path / "cache", Path.unlink
    hold(project, folder, InputOptions())

    def killed(path: Path, *, missing_ok: bool = False) -> None:
        if path.name.startswith("epoch"):
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            hold(project, folder, InputOptions(shuffle=7))
    assert hold(project, folder, InputOptions()) == [f"the rows in {folder} are made again: they are not complete"]


def test_runs_read_the_same_rows_beside_each_other_and_one_alone_writes(project: Project) -> None:
    folder, options = project.path / "cache", InputOptions()
    facts = partial(project.facts, options)
    with (
        kept_rows(folder, facts, Refusals(), print),
        pytest.raises(ConfigError, match="another pretraining writes to"),
    ):
        hold(project, folder, options)
    hold(project, folder, options)
    with kept_rows(folder, facts, Refusals(), print):
        assert "are read from" in hold(project, folder, options)[0]
        with pytest.raises(ConfigError, match=r"reads other rows in .* \(--shuffle: 65536 before, and 7 now\)"):
            hold(project, folder, InputOptions(shuffle=7))


def test_a_folder_that_holds_anything_else_is_refused(tmp_path: Path) -> None:
    assert cache_folder(InputOptions(cache="memory")) is None
    for unused in (tmp_path, tmp_path / "new"):
        assert cache_folder(InputOptions(cache=str(unused))) == unused
    (tmp_path / "epoch.index").touch()
    with pytest.raises(ConfigError, match="is not an empty folder, nor one with the rows of an earlier pretraining"):
        cache_folder(InputOptions(cache=str(tmp_path)))
