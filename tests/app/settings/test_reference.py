"""The page and the schema that are made from the models."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from millrace.app.settings import Settings
from millrace.app.settings.all_settings import models_in, settings_of
from millrace.app.settings.reference import json_schema, reference
from millrace.app.settings.spelling import flow

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run: python -m millrace.app.settings.reference > docs/configuration.md"


@pytest.mark.parametrize("page", [PAGE, PAGE.parents[1] / "README.md"], ids=lambda page: page.name)
def test_the_five_lines_on_the_page_are_those_of_the_example(page: Path) -> None:
    example = (PAGE.parents[1] / "examples" / "clicks" / "clicks.yaml").read_text()
    assert f"```yaml\n{example}```" in page.read_text()


def test_every_setting_has_a_description_and_every_required_one_an_example() -> None:
    for key, info in settings_of(Settings):
        assert info.description, key
        assert info.description.endswith("."), key
        assert info.examples or models_in(info.annotation) or not info.is_required(), key


def test_what_features_alone_can_have_is_offered_for_no_label() -> None:
    offered = {".".join(map(str, key)) for key, _ in settings_of(Settings)}
    for key in ("pad", "length", "ragged"):
        assert f"records.features.<name>.{key}" in offered
        assert not {f"records.label.{key}", f"records.label.<name>.{key}"} & offered
    document = json_schema()
    labels = [schema for name, schema in document["$defs"].items() if name.endswith("LabelSettings")]
    assert len(labels) == 3
    assert not any({"pad", "length", "ragged"} & properties.keys() for properties in map(_properties, labels))


def _properties(section: dict[str, Any]) -> dict[str, Any]:
    forms = (section, *section.get("anyOf", ()))
    return next(dict(form["properties"]) for form in forms if "properties" in form)


def test_every_setting_stands_on_the_page() -> None:
    page = PAGE.read_text()
    assert all(f"`{'.'.join(map(str, key))}`" in page for key, info in settings_of(Settings) if len(key) > 1)


def every_property(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for item in schema for found in every_property(item)]
    if not isinstance(schema, dict):
        return []
    here = list(schema.get("properties", {}).values())
    return here + [found for value in schema.values() for found in every_property(value)]


def test_the_schema_spells_values_as_a_file_does() -> None:
    document = json_schema()
    training = document["$defs"]["TrainingSettings"]["properties"]
    assert training["max_wait"]["default"] == "500ms"
    assert document["$defs"]["CheckpointSettings"]["properties"]["every"]["default"] == "1m"
    assert "default" not in document["$defs"]["KafkaSettings"]["properties"]["group"]
    assert document["required"] == ["name", "kafka", "records", "model", "checkpoints"]


def test_the_schema_describes_every_setting_and_refuses_unknown_ones() -> None:
    document = json_schema()
    sections = {f"#/$defs/{name}": schema for name, schema in document["$defs"].items()}
    described = [
        found.get("description") or sections[found["$ref"]]["description"] for found in every_property(document)
    ]
    assert len(described) > 50
    assert all(described)
    objects = [schema for schema in document["$defs"].values() if "properties" in schema]
    assert objects
    assert all(schema["additionalProperties"] is False for schema in objects)


@pytest.mark.parametrize("text", ["NO", "null", "true", "1.0", "1e5", "7d", "-7d", "5%", "", "a: b", "#a", "a b", "~"])
def test_text_is_spelled_so_that_yaml_reads_it_as_text(text: str) -> None:
    assert YAML(typ="safe", pure=True).load(flow(text)) == text


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
@example(".0")
@example("-1")
@example("._")
@example("-_")
def test_any_text_is_spelled_so_that_yaml_reads_it_as_text(text: str) -> None:
    assert YAML(typ="safe", pure=True).load(f"[{flow(text)}]") == [text]
