"""docs/plugins.md followed to the letter: its files and settings beside a model, and `millrace validate` on them."""

import re
import subprocess
from pathlib import Path

import pytest

from millrace.app.tools.child_process import millrace_command, worker_environment
from millrace.training.detectors.conformance import complaints
from millrace.training.detectors.detectors import detector_of
from tests.app.tools.export.exported_model import project
from tests.app.tools.export.test_onnx import CONFIG, MODEL

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "plugins.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")[1:]}


def block(section: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)
    assert found is not None
    return found[1]


def placed(section: str, folder: Path) -> str:
    """Write the class of a section beside a config, and return the name that its settings have for it."""
    name = re.search(r"\./(\w+)\.py:\w+", block(section, "yaml"))
    assert name is not None
    (folder / f"{name[1]}.py").write_text(block(section, "python"))
    return name[0]


def test_the_detector_of_the_page_keeps_what_every_detector_keeps(tmp_path: Path) -> None:
    name = placed("A detector", tmp_path)
    file, _, class_name = name.rpartition(":")
    assert [*complaints(lambda: detector_of(f"{tmp_path / file}:{class_name}"))] == []


@pytest.mark.slow
@pytest.mark.tensorflow
def test_millrace_validate_takes_the_classes_of_the_page(tmp_path: Path) -> None:
    further = [placed(section, tmp_path) for section in ("An export writer", "A detector")]
    yaml = "\n".join(block(section, "yaml") for section in ("An export writer", "A detector"))
    project(tmp_path, CONFIG.replace(re.findall("export: .*", CONFIG)[0], yaml), MODEL, saves=0)
    said = subprocess.run(
        millrace_command(["validate", "-c", str(tmp_path / "clicks.yaml")]),
        env=worker_environment({"COLUMNS": "200"}),
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    # Kafka is not there, and is a check of its own.
    for name in further:
        assert re.search(rf"\bok\b.*{re.escape(name)} (answers|marks)", said), said
