"""What `export.formats: [saved_model, onnx]` asks for is said in one line, before anything is exported."""

from pathlib import Path

import pytest

from millrace.app.settings import load
from millrace.app.settings.yaml_file import SettingsError
from millrace.app.tools.validate.settings_checks import export_check
from millrace.consumers.errors import ConfigError
from millrace.training.errors import ModelError
from millrace.training.model.export import onnx
from millrace.training.model.export.writers import require_all

CONFIG = """
name: clicks
kafka: {{bootstrap_servers: [127.0.0.1:1], topics: [clicks]}}
records:
  features: {{price: float32, {feature}}}
  label: {{y: float32}}
model: {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
export: {{path: ./exports, formats: [{formats}]}}
"""
NEEDY = """
from millrace.training.errors import ExportError
from millrace.training.model.export.export_writer import ExportWriter

class Needy(ExportWriter):
    def require(self):
        {code}

    def write(self, model, folder): ...

    def prove(self, folder, rows): ...
"""


def problem(path: Path, feature: str = "x: float32", formats: str = "saved_model, onnx") -> str:
    """Return the line that a config is refused with; empty where it is taken."""
    (path / "clicks.yaml").write_text(CONFIG.format(feature=feature, formats=formats))
    try:
        load(path / "clicks.yaml", {})
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        ("ad: string", "ad is text"),
        ("ad: {dtype: int32, one_of: [a, b]}", "ad is text"),
        ("ad: {dtype: float32, shape: [3], pad: 0.0}", "ad is a list of varying length"),
        ("ad: {dtype: float32, shape: [3], ragged: true}", "ad is a list of varying length"),
    ],
)
def test_a_feature_that_onnx_does_not_take_is_named(tmp_path: Path, feature: str, said: str) -> None:
    assert f"formats: onnx takes numbers of one shape, and {said}; write [saved_model]" in problem(tmp_path, feature)
    assert problem(tmp_path, feature, "saved_model") == ""


@pytest.mark.parametrize("formats", ["onnx", "saved_model, saved_model", "onnx, onnx"])
def test_a_version_always_holds_one_saved_model(tmp_path: Path, formats: str) -> None:
    assert "a version always holds one SavedModel" in problem(tmp_path, formats=formats)


def test_numbers_of_one_shape_are_taken(tmp_path: Path) -> None:
    assert problem(tmp_path, "x: {dtype: float64, shape: [2, 3]}") == ""


def test_a_package_that_is_missing_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "_PACKAGES", ("onnx", "no_such_runtime"))
    formats = {"saved_model": "saved_model", "onnx": "onnx"}
    require_all(["saved_model"])
    with pytest.raises(ConfigError, match=r"not installed: no_such_runtime; run pip install .*\[onnx\]\", or write"):
        require_all(formats)
    assert export_check(formats).outcome == "fail"
    monkeypatch.undo()
    assert export_check(formats).outcome == "ok"


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("import no_such_runtime", "ModuleNotFoundError: No module named 'no_such_runtime'"),
        ("open('/no/such/licence')", "FileNotFoundError: "),
        ("raise SystemExit(3)", "SystemExit: "),
        ("raise ExportError('no licence')", "ExportError: no licence"),
    ],
)
def test_a_users_writer_that_cannot_be_used_here_is_named_in_a_line(tmp_path: Path, code: str, raised: str) -> None:
    file = tmp_path / "w.py"
    file.write_text(NEEDY.format(code=code))
    with pytest.raises(ModelError) as refused:
        require_all([f"{file}:Needy"])
    said = str(refused.value)
    assert said.startswith(f"export.formats: Needy in {file} cannot be used here: its require() raised {raised}")
    assert said.endswith("(line 7)")
    assert "\n" not in said
    check = export_check({"./w.py:Needy": f"{file}:Needy"})
    assert (check.outcome, check.exit_code, check.detail) == ("fail", 2, said)
