"""Export writers: what every one keeps, ours and one of a user's; and what a file that is none is told."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from millrace.app.settings import load
from millrace.app.settings.yaml_file import SettingsError
from millrace.app.tools.export.child_process import answers_of, run_module
from millrace.app.tools.export.export import export_checkpoint
from millrace.app.tools.export.export_folder import folder_of
from millrace.app.tools.validate.plugin_checks import writer_checks
from millrace.pipelines.schema import Field, Schema
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import ExportError, ExportRefusedError, ModelError
from millrace.training.model.call.running_scale import with_constants
from millrace.training.model.export.conformance import complaints
from millrace.training.model.export.export_writer import WritableModel
from millrace.training.model.export.served_module import ServedModel, ServedModule
from millrace.training.model.export.writers import WRITERS, writer_of
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.probes import make_probe
from millrace.training.model.setup.strategy import DeviceOptions
from tests.app.tools.export.exported_model import project
from tests.app.tools.export.test_onnx import CONFIG, MODEL

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("forked_modules")]
TFLITE = Path(__file__).parents[4] / "examples" / "plugins" / "tflite.py"
SCHEMA = Schema(
    features=(
        Field(name="price", source="price", dtype="float32", scaled=()),
        Field(name="hour", source="hour", dtype="int32", min=0, max=23),
        Field(name="seen", source="seen", dtype="float32", shape=(4,), scaled=(4,)),
    ),
    labels=(Field(name="kind", source="kind", dtype="int32", classes=("cat", "dog", "cow"), min=0, max=2),),
)
LYING = """
import numpy as np
from millrace.training.model.export.export_writer import ExportWriter

class Lying(ExportWriter):
    def write(self, model, folder):
        (folder / "lie").write_text("")

    def prove(self, folder, rows):
        return {"kind": np.zeros((len(rows["price"]), 3), np.float32)}
"""


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    from millrace.training.model.setup.model_file import ModelFile
    from millrace.training.model.setup.model_file import load as load_model

    file = tmp_path_factory.mktemp("model") / "model.py"
    file.write_text(MODEL)
    functions = load_model(ModelFile(path=file, function="build_model"))
    options = LearnerOptions(schema=SCHEMA, batch_size=8, devices=DeviceOptions())
    return Learner(functions.build, functions.preprocess, options)


@pytest.mark.slow
@pytest.mark.parametrize("place", [*WRITERS, f"{TFLITE}:TFLite"], ids=[*WRITERS, "of a user"])
def test_every_export_writer_keeps_what_all_of_them_keep(learner: Learner, place: str) -> None:
    statistics = {
        name: {"count": [100.0] * size, "mean": [0.4] * size, "squares": [9.0] * size}
        for name, size in (("price", 1), ("seen", 4))
    }
    preprocess = with_constants(learner.preprocess, SCHEMA, PartState(facts=statistics))
    served = ServedModel(model=learner.model, schema=SCHEMA, preprocess=preprocess)
    model = WritableModel(module=ServedModule(served), user_code=(), run=run_module)
    writer = writer_of(place)
    assert [*complaints(writer, model, make_probe(SCHEMA, 8), partial(answers_of, place, writer))] == []


@pytest.mark.slow
def test_a_writer_that_answers_without_its_files_is_a_failed_check(learner: Learner, tmp_path: Path) -> None:
    (tmp_path / "lying.py").write_text(LYING)
    checks = [*writer_checks({"./lying.py:Lying": f"{tmp_path / 'lying.py'}:Lying"}, learner)]
    assert {(check.outcome, check.exit_code) for check in checks} == {("fail", 2)}
    assert [check.detail.partition(": on")[0].partition(" answers")[0] for check in checks] == [
        "export.formats: ./lying.py:Lying",
        "export.formats: ./lying.py:Lying: with its files gone it",
    ]


@pytest.mark.slow
def test_a_version_holds_what_a_writer_of_the_users_writes_with_its_proof(tmp_path: Path) -> None:
    (tmp_path / "tflite.py").write_text(TFLITE.read_text())
    name = "./tflite.py:TFLite"
    loaded = project(tmp_path, CONFIG.replace("onnx]", f"{name}]"), MODEL)
    made = export_checkpoint(loaded, None, folder_of(loaded.settings))
    found = json.loads((made.folder / "millrace.json").read_text())
    assert found["files"]["model.tflite"]["bytes"] == (made.folder / "model.tflite").stat().st_size
    assert found["onnx"] is None
    assert 0 <= found["formats"][name]["max_difference"] <= found["formats"][name]["tolerance"] < 1e-5
    assert folder_of(loaded.settings).manifest(2).formats == made.manifest.formats


@pytest.mark.slow
def test_a_writer_of_the_users_that_answers_otherwise_publishes_nothing(tmp_path: Path) -> None:
    (tmp_path / "lying.py").write_text(LYING)
    loaded = project(tmp_path, CONFIG.replace("onnx]", "./lying.py:Lying]"), MODEL)
    folder = folder_of(loaded.settings)
    with pytest.raises(ExportRefusedError, match=r"\./lying\.py:Lying answers the output 'kind.*' otherwise than"):
        export_checkpoint(loaded, None, folder)
    assert (folder.numbers(), folder.leftovers()) == ([], [])


@pytest.mark.slow
def test_what_the_write_of_a_user_raises_is_a_line_and_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "lying.py").write_text(LYING)
    loaded = project(tmp_path, CONFIG.replace("onnx]", "./lying.py:Lying]"), MODEL)
    folder = folder_of(loaded.settings)
    for code, error, said in (
        (
            "open('/no/such/tokens')",
            ExportRefusedError,
            r"/lying.py:Lying cannot write it: FileNotFoundError: .*tokens'$",
        ),
        ("raise SystemExit(3)", ExportRefusedError, r"/lying.py:Lying cannot write it: SystemExit: "),
        ("import os; raise OSError(28, os.strerror(28))", ExportError, "No space left on device"),
    ):
        (tmp_path / "lying.py").write_text(LYING.replace('(folder / "lie").write_text("")', code))
        with pytest.raises(error, match=said) as raised:
            export_checkpoint(loaded, None, folder)
        assert type(raised.value) is error
        assert (folder.numbers(), folder.leftovers()) == ([], [])


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("class A: pass", "B", "has no class 'B'; it has A"),
        ("A = 3", "A", "'A' in .* is a int, not a class"),
        ("class A: pass", "A", "A in .* is no ExportWriter; write from .*writer import ExportWriter, and class A"),
        ("import nowhere_at_all", "A", "does not import: ModuleNotFoundError: .*line 1"),
        (f"{LYING}    prove = 1\nclass A(ExportWriter): pass", "A", "A in .* lacks prove and write; define prove"),
        (f"{LYING}    def __init__(self): 1 / 0", "Lying", r"Lying\(\) raised ZeroDivisionError: .*line 11"),
    ],
)
def test_a_file_that_holds_no_writer_is_told_what_it_lacks(tmp_path: Path, text: str, name: str, said: str) -> None:
    (tmp_path / "w.py").write_text(text)
    with pytest.raises(ModelError, match=f"^export.formats: .*{said}"):
        writer_of(f"{tmp_path / 'w.py'}:{name}")


def test_a_writer_in_a_file_that_is_not_there_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"export.formats: there is no file .*w.py; the path is relative to"):
        writer_of(f"{tmp_path / 'w.py'}:A")


def test_a_format_that_is_no_name_and_no_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clicks.yaml").write_text(CONFIG.replace("onnx]", "coreml]"))
    with pytest.raises(SettingsError, match="'coreml' is neither saved_model, onnx nor a class in a file; write"):
        load(tmp_path / "clicks.yaml", {})


def test_a_column_that_is_not_answered_differs(tmp_path: Path) -> None:
    from millrace.training.model.export.answers import differing

    assert differing({"a": np.zeros(1)}, {}) == {"a": float("inf")}
