"""docs/plugins.md followed to the letter: its files and settings beside a model, and `millrace validate` on them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.settings import load, to_decoder
from millrace.app.tools.validate import kafka_check
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


def reading(folder: Path) -> Path:
    """Write the format of the page, and a config with the records of the page."""
    placed("A format", folder)
    config = folder / "access.yaml"
    config.write_text(
        "name: access\nkafka: {bootstrap_servers: [127.0.0.1:1], topics: [access]}\n"
        f"{block('A format', 'yaml')}"
        "model: {build: ./model.py:build_model}\ncheckpoints: {path: ./checkpoints}\n"
    )
    return config


def test_the_format_of_the_page_is_the_example() -> None:
    assert block("A format", "python") == (ROOT / "examples" / "plugins" / "logfmt.py").read_text()


def test_the_format_of_the_page_reads_the_lines_of_services(tmp_path: Path) -> None:
    decoded = to_decoder(load(reading(tmp_path), {}).settings.records).decode(
        [
            b"level=info path=/buy bytes=512 service=0.25 status=200\n",
            b'level=warn path="/a \\"b\\" c=d" bytes=0 status=404 user="\xc3\xa9"',
            b"level=trace path=/ bytes=1 status=200",
            b"level=info path=/ bytes=-1 status=200",
            b"level=info path=/ bytes=1 status=OK",
            b"level=info path=/ status=200",
            b'level=info path="/',
            b"a line of text",
        ]
    )
    assert {source: column.tolist() for source, column in decoded.columns.items()} == {
        "level": [b"info", b"warn"],
        "path": [b"/buy", b'/a "b" c=d'],
        "bytes": [512, 0],
        "service": [0.25, 0.0],
        "status": [200, 404],
    }
    assert [(refusal.reason.value, refusal.field) for refusal in decoded.refused] == [
        ("not_allowed", "level"),
        ("out_of_range", "bytes"),
        ("wrong_type", "status"),
        ("missing", "bytes"),
        ("malformed", None),
        ("malformed", None),
    ]


@pytest.fixture
def validate(forked_modules: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run `millrace validate`, and return what it prints. Kafka is not there, and is a check of its own."""
    monkeypatch.setattr(kafka_check, "_CONNECT_S", 0.5)
    runner = CliRunner(env={"COLUMNS": "200"})
    return lambda *words: runner.invoke(application, ["validate", *words]).stdout


@pytest.mark.slow
@pytest.mark.tensorflow
def test_millrace_validate_examines_the_format_of_the_page(tmp_path: Path, validate: Callable[..., str]) -> None:
    checks = json.loads(validate("-c", str(reading(tmp_path)), "--json"))["checks"]
    # Nor is a model there, and it is a check of its own.
    assert [check["outcome"] for check in checks if check["name"] == "format"] == ["ok"] * 8


@pytest.mark.slow
@pytest.mark.tensorflow
def test_millrace_validate_takes_the_classes_of_the_page(tmp_path: Path, validate: Callable[..., str]) -> None:
    further = [placed(section, tmp_path) for section in ("An export writer", "A detector")]
    yaml = "\n".join(block(section, "yaml") for section in ("An export writer", "A detector"))
    project(tmp_path, CONFIG.replace(re.findall("export: .*", CONFIG)[0], yaml), MODEL, saves=0)
    said = validate("-c", str(tmp_path / "clicks.yaml"))
    for name in further:
        assert re.search(rf"\bok\b.*{re.escape(name)} (answers|marks)", said), said
