"""`millrace config`, as it is typed."""

import json
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from millrace.app.cli.config import config

ROOT = Path(__file__).parents[3]
CONFIGS = [*ROOT.glob("examples/*/*.yaml"), *ROOT.glob("bench/configs/*.yaml"), ROOT / "k8s" / "base" / "millrace.yaml"]
FIVE_LINES = """\
name: clicks
kafka:   {bootstrap_servers: [localhost:9092], topics: [clicks]}
records: {features: {price: float32}, label: {clicked: float32}}
model:   {build: ./model.py:build_model, args: {buckets: 5, api_key: canary-1, nested: {db_password: {a: canary-2}}}}
checkpoints: {path: ./checkpoints}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "clicks.yaml"
    path.write_text(FIVE_LINES)
    return str(path)


def run(*arguments: str, **environ: str) -> str:
    result = CliRunner().invoke(config, list(arguments), env=environ, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_show_prints_each_value_with_its_origin(file: str) -> None:
    lines = [line.split() for line in run("show", "-c", file, MILLRACE_STOP__GRACE="90s").splitlines()]
    assert ["name", "clicks", f"{file}:1"] in lines
    assert ["training.max_wait", "500ms", "default"] in lines
    assert ["stop.grace", "90s", "environment", "MILLRACE_STOP__GRACE"] in lines
    assert ["records.features.price", "float32", f"{file}:3"] in lines


def test_show_as_json_holds_settings_and_origins(file: str) -> None:
    shown = json.loads(run("show", "-c", file, "--json"))
    assert shown["settings"]["kafka"]["group"] == "millrace-clicks"
    assert shown["settings"]["kafka"]["fetch_bytes"] == "1MiB"
    assert shown["origins"]["kafka.topics"] == f"{file}:2"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_show_masks_secrets(file: str, form: list[str]) -> None:
    shown = run("show", "-c", file, *form)
    assert "canary" not in shown
    assert shown.count("********") == 2
    assert "buckets" in shown


def test_schema_is_a_json_schema() -> None:
    document = json.loads(run("schema"))
    assert document["$schema"].endswith("2020-12/schema")
    assert set(document["properties"]) >= {"name", "kafka", "records", "model", "training", "checkpoints"}


def mistakes(text: str) -> list[str]:
    """Return what an editor would underline, by the schema as it is printed."""
    schema = json.loads(run("schema"))
    jsonschema.Draft202012Validator.check_schema(schema)
    config = YAML(typ="safe", pure=True).load(text)
    return [mistake.json_path for mistake in jsonschema.Draft202012Validator(schema).iter_errors(config)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_an_editor_accepts_every_config_of_the_project(config: Path) -> None:
    assert mistakes(config.read_text()) == []


@pytest.mark.parametrize("slices", ["[country]", "{country: string}", "{app: {field: client.version}}"])
def test_an_editor_accepts_each_form_of_slices(slices: str) -> None:
    assert mistakes(FIVE_LINES.replace("records: {", f"records: {{slices: {slices}, ")) == []


@pytest.mark.parametrize(
    ("right", "wrong", "where"),
    [
        ("records: {features", "records: {featurs", "$.records"),
        ("price: float32", "price: float31", "$.records.features.price"),
        ("topics: [clicks]", "topics: clicks", "$.kafka.topics"),
        ("name: clicks", "name: clicks\ntraining: {max_wait: 5}", "$.training.max_wait"),
        ("name: clicks", "name: clicks\nstop: {grace: 60}", "$.stop.grace"),
    ],
)
def test_an_editor_underlines_a_mistake(right: str, wrong: str, where: str) -> None:
    assert where in mistakes(FIVE_LINES.replace(right, wrong))
