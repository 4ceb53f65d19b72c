"""`windows`: which of them can be, and the rows that they make of records."""

import json
from typing import Any

import pytest

from millrace.app.settings.yaml_file import SettingsError
from tests.app.conftest import FIVE_LINES

BY_USER: dict[str, Any] = {"length": 5, "by": "user", "lengths": "known", "gaps": "gaps"}
FEATURES: dict[str, Any] = {
    "user": "int64",
    "price": "float32",
    "tags": {"dtype": "string", "shape": [3], "pad": "", "length": "tag_count"},
}


def variables(windows: dict[str, Any], **others: Any) -> dict[str, str]:
    given = {"RECORDS__FEATURES": FEATURES, "RECORDS__LABEL": {"field": "bought"}, "WINDOWS": windows} | others
    return {f"MILLRACE_{name}": json.dumps(value) for name, value in given.items()}


def test_rows_of_windows_have_the_shapes_that_the_model_is_given(load_text: Any) -> None:
    settings = load_text(**variables(BY_USER)).settings
    shapes = {field.name: field.shape for field in settings.row_schema.inputs}
    assert shapes == {"user": (), "price": (5,), "tags": (5, 3), "tag_count": (5,), "known": (), "gaps": (5,)}


@pytest.mark.parametrize(
    ("windows", "others", "text"),
    [
        ({"by": "usr"}, {}, "by: there is no feature 'usr'; name one of user, price, tags"),
        ({"by": "price"}, {}, "by: 'price' is float32, and a key is one whole number, or a text"),
        ({"of": ["user"]}, {}, "of: 'user' is the key"),
        ({"lengths": "price"}, {}, "two features would be called 'price'"),
        ({"max_bytes": "100B"}, {}, "max_bytes: 100 bytes hold no single key"),
        ({"length": None}, {"RECORDS__LABEL": {"field": "price", "ahead": 3}}, "a label is ahead"),
        ({}, {"RECORDS__FEATURES": FEATURES | {"more": {"dtype": "int8", "shape": [2], "ragged": True}}}, "pad it"),
    ],
)
def test_windows_that_cannot_be_are_refused_with_the_way_out(
    load_text: Any, windows: dict[str, Any], others: dict[str, Any], text: str
) -> None:
    with pytest.raises(SettingsError, match=text):
        load_text(**variables(BY_USER | windows, **others))


@pytest.mark.parametrize("name", ["by", "of", "every", "max_bytes"])
def test_windows_without_a_length_are_warned_of_by_the_setting_without_effect(load_text: Any, name: str) -> None:
    value = {"by": "user", "of": ["price"], "every": 2, "max_bytes": "1MiB"}[name]
    (warning,) = load_text(**variables({name: value})).warnings
    assert warning.startswith(f"windows.{name} has no effect: it says how records become sequences")
    assert load_text(**variables({name: value, "length": None})).warnings == ()


def test_a_label_that_is_also_a_feature_is_warned_of_with_both_named(load_text: Any) -> None:
    other_name = {"cost": {"dtype": "float32", "field": "order.price"}}
    for features, label in (({"price": "float32"}, {"price": "float32"}), (other_name, {"field": "order.price"})):
        feature, source = next(iter(features)), label.get("field", "price")
        # No refusal: `preprocess` may drop the feature, which settings cannot know.
        (warning,) = load_text(**variables({}, RECORDS__FEATURES=features, RECORDS__LABEL=label)).warnings
        told = f"records.label: the feature '{feature}' reads the same field '{source}' of a record"
        assert warning.startswith(told)


def test_a_later_value_of_a_feature_may_be_the_label(load_text: Any) -> None:
    label = {"field": "price", "ahead": 3}
    settings = load_text(**variables(BY_USER | {"of": ["price"]}, RECORDS__LABEL=label)).settings
    assert [field.ahead for field in settings.row_schema.labels] == [3]


@pytest.mark.parametrize("file", [True, False])
def test_an_old_name_means_the_same_and_is_warned_of_with_the_new_one(load_text: Any, problem: Any, file: bool) -> None:
    old = f"{FIVE_LINES}windows: {{length: 5, stride: 3}}\n"
    given = {} if file else {"MILLRACE_WINDOWS__STRIDE": "3", "MILLRACE_WINDOWS__LENGTH": "5"}
    loaded = load_text(old if file else FIVE_LINES, **given)
    origin = loaded.origins["windows.every"]
    assert (loaded.settings.windows.every, "windows.stride" in loaded.origins) == (3, False)
    assert origin.endswith("clicks.yaml:6") if file else origin == "environment MILLRACE_WINDOWS__STRIDE"
    (warning,) = loaded.warnings
    assert warning == f"{origin}: windows.stride is now called windows.every, and means the same; write the new name"
    # The environment goes over the file, whatever each of them calls it.
    assert load_text(old, MILLRACE_WINDOWS__EVERY="2").settings.windows.every == 2
    both = problem("windows: {length: 5, stride: 3, every: 2}\n")
    assert both == "clicks.yaml:6: windows.stride is now called windows.every, which is there too; leave stride out"
