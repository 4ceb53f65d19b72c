"""Settings of labels that come later: what fits together, and one line for each thing that does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from millrace.app.settings import to_decoder
from millrace.app.settings.root import Settings
from millrace.consumers.errors import ConfigError

Change = Callable[[dict[str, Any]], object]


def settings(change: Change = lambda _: None) -> Settings:
    labels = {
        "topics": ["clicks"],
        "join": {"record": "id"},
        "label": {"clicked": {"dtype": "float32", "absent": 0.0}},
    }
    given = {
        "name": "ads",
        "kafka": {"bootstrap_servers": ["localhost:9092"], "topics": ["impressions"]},
        "records": {"features": {"price": "float32"}},
        "labels": labels,
        "model": {"build": "./model.py:build_model"},
        "checkpoints": {"path": "./checkpoints"},
    }
    change(given)
    return Settings.model_validate(given)


def test_the_key_is_read_from_records_and_the_label_is_a_column_of_rows() -> None:
    found = settings()
    assert found.records.key is not None
    assert (found.records.key.field, found.records.key.dtype) == ("id", "string")
    assert [field.name for field in found.row_schema.labels] == ["clicked"]
    assert found.labels.rules.key == ("id", "id", "string")
    assert (found.labels.rules.within_ms, found.labels.rules.early_ms) == (1_800_000, 60_000)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda one: one["labels"].pop("join"), "record is missing"),
        (lambda one: one["labels"].pop("label"), "it names no label"),
        (lambda one: one["labels"].update(topics=["impressions"]), "impressions is in kafka.topics too"),
        (lambda one: one["labels"]["label"]["clicked"].update(absent="no"), "'no' is no float32"),
        (lambda one: one["labels"]["label"]["clicked"].update(absent=[1]), "[1] is no single value"),
        (lambda one: one["labels"]["label"]["clicked"].update(ahead=1), "a label that its record holds"),
        (lambda one: one["labels"].update(take="sum", label={"kind": "string"}), "'kind' is string"),
        (lambda one: one["labels"].update(avro={"schema_file": "/a.avsc"}), "this is about format: avro"),
        (lambda one: one["records"].update(label={"clicked": "float32"}), "records.label has 'clicked' too"),
        (
            lambda one: (
                one.update(scale={"workers": 2}, kafka={**one["kafka"], "topics": ["impressions", "others"]}),
                one["labels"].update(co_partitioned=True),
            ),
            "labels.co_partitioned works with one topic of records only",
        ),
        (lambda one: one["records"]["features"].update(id="int64"), "read the record's field 'id' differently"),
        (
            lambda one: (
                one["labels"].update(score_on_arrival=0.01)
                or one["records"]["features"].update(user="string")
                or one.update(windows={"by": "user", "length": 3})
            ),
            "score_on_arrival: with windows a row is made of several records",
        ),
        (
            lambda one: one["labels"].update(score_on_arrival=0.01) or one.update(scale={"workers": 2}),
            "labels.score_on_arrival works with one worker only",
        ),
        (
            lambda one: one["labels"].update(match="last_before") or one.update(scale={"workers": 2}),
            "labels.match: last_before works with one worker only",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: Change, complaint: str) -> None:
    with pytest.raises(ValidationError) as told:
        settings(change)
    assert complaint in str(told.value)


def test_labels_that_no_topic_holds_have_no_effect() -> None:
    assert settings().labels.without_effect() is None
    told = settings(lambda one: one["labels"].update(topics=[])).labels.without_effect()
    assert told == "labels.join has no effect without labels.topics; name the topics of the labels, or leave it out"


def test_schemas_of_records_and_of_labels_are_kept_apart() -> None:
    url = "http://localhost:8081"

    def from_registries(given: dict[str, Any]) -> None:
        given["records"].update(format="avro", registry={"url": url})
        given["labels"].update(format="avro", registry={"url": url})

    found = settings(from_registries)
    assert found.records.registry is not None
    assert found.labels.registry is not None
    kept = [one.cache for one in (found.records.registry, found.labels.registry)]
    assert [None if one is None else one.parts[-3:] for one in kept] == [
        ("checkpoints", "ads", "schemas"),
        ("checkpoints", "ads", "schemas-of-labels"),
    ]


def test_what_is_wrong_with_the_registry_of_labels_names_its_own_settings(tmp_path: Path) -> None:
    registry: dict[str, Any] = {"url": "http://localhost:1", "token_file": str(tmp_path / "token")}
    found = settings(lambda one: one["labels"].update(format="avro", registry=registry)).labels.records()
    with pytest.raises(ConfigError, match=r"^labels\.registry\.token_file: "):
        to_decoder(found)
    with pytest.raises(ValidationError, match=r"write labels\.registry\.password_file too"):
        settings(lambda one: one["labels"].update(format="avro", registry={**registry, "username": "mill"}))
