"""`records.label.classes`: which settings go with classes that appear, and what the model gets of them."""

from typing import Any

import pytest

from millrace.app.settings.yaml_file import SettingsError

CONFIG = """
name: news
kafka: {bootstrap_servers: [localhost:9092], topics: [news]}
records: {features: {price: float32}, label: {field: kind, classes: 4}}
model: {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
"""


def test_the_record_holds_a_text_and_the_model_gets_a_number(load_text: Any) -> None:
    settings = load_text(CONFIG, MILLRACE_RESERVOIR='{"size": 40, "by": "label"}').settings
    [made], [learnt] = settings.block_schema.labels, settings.row_schema.labels
    assert (made.dtype, made.as_read.one_of) == ("string", None)
    assert (learnt.dtype, learnt.min, learnt.max, learnt.appearing) == ("int32", 0, 3, None)
    assert settings.reservoir.classes_of(settings.row_schema) == ("kind", (0.0, 1.0, 2.0, 3.0))
    assert [states.name for states in settings.shapers()] == ["classes"]


def test_a_label_without_such_classes_is_shown_as_before(load_text: Any) -> None:
    settings = load_text(CONFIG.replace("{field: kind, classes: 4}", "{field: kind}")).settings
    assert "classes" not in settings.model_dump(mode="json")["records"]["label"]
    assert settings.block_schema == settings.row_schema


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"MILLRACE_SCALE__WORKERS": "2"}, "scale: 2 workers: records.label.classes works with one worker only"),
        (
            {"MILLRACE_TRAINING__PARTIAL_BATCHES": "wait"},
            "partial_batches: wait does not go with records.label.classes; write pad",
        ),
    ],
)
def test_what_cannot_number_classes_is_refused_by_name(load_text: Any, variables: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load_text(CONFIG, **variables)
