"""`balance`: how it can leave records out, and what it refuses."""

import json
from typing import Any

import pytest

from millrace.app.settings.yaml_file import SettingsError

RESAMPLED: dict[str, Any] = {"target": {"0": 0.9, "1": 0.1}, "how": "resample"}
ONE_HOT = {"RECORDS__LABEL": {"field": "clicked", "dtype": "float32", "shape": [2]}}


def variables(balance: dict[str, Any], **others: Any) -> dict[str, str]:
    given = {"RECORDS__FEATURES": {"x": {"dtype": "float32", "shape": [3]}, "kind": "string"}, "BALANCE": balance}
    return {f"MILLRACE_{name}": json.dumps(value) for name, value in {**given, **others}.items()}


@pytest.mark.parametrize(
    ("balance", "others", "text"),
    [
        ({"by": "knd"}, {}, "by: knd is neither a label nor a feature"),
        ({"by": "x", "target": {"0": 0.5, "1": 0.5}}, {}, r"by: x has the shape \(3,\), and a class is one value"),
        ({"target": {"no": 0.5, "yes": 0.5}}, {}, "target: clicked holds numbers, and 'no' is none"),
        ({"target": {"1": 0.5, "2": 0.5}}, ONE_HOT, "target: the labels are one-hot: name the classes 0 to 1"),
        (
            {"by": "pair", "target": {"a": 0.5, "b": 0.5}},
            {"RECORDS__FEATURES": {"pair": {"dtype": "string", "shape": [2]}}},
            r"by: pair has the shape \(2,\), and a class is one value",
        ),
    ],
)
def test_records_cannot_be_left_out_by_what_is_no_class_or_by_several_workers(
    load_text: Any, balance: dict[str, Any], others: dict[str, Any], text: str
) -> None:
    with pytest.raises(SettingsError, match=text):
        load_text(**variables(RESAMPLED | balance, **others))


def test_places_in_one_hot_labels_are_the_classes_that_are_named(load_text: Any) -> None:
    (shaper,) = load_text(**variables(RESAMPLED, **ONE_HOT)).settings.shapers()
    assert shaper.depends_on() == {"field": "clicked", "classes": ["0", "1"]}


def test_sequences_come_before_what_is_left_out_and_nothing_is_by_weights_alone(load_text: Any) -> None:
    windows = {"WINDOWS": {"length": 5, "by": "kind"}}
    assert [states.name for states in load_text(**variables(RESAMPLED, **windows)).settings.shapers()] == [
        "windows",
        "resampling",
    ]
    assert load_text(**variables({**RESAMPLED, "how": "weight"})).settings.shapers() == ()
