"""`records.features.*.scale`: which features it is for, and what it says of rows."""

import json
from typing import Any

import pytest

from millrace.app.settings.yaml_file import SettingsError


def variables(**features: Any) -> dict[str, str]:
    given = {"RECORDS__FEATURES": {"user": "int64", **features}, "RECORDS__LABEL": {"field": "bought"}}
    return {f"MILLRACE_{name}": json.dumps(value) for name, value in given.items()}


def test_a_sequence_of_a_scaled_feature_is_scaled_by_the_value_of_one_record(load_text: Any) -> None:
    price = {"dtype": "float32", "scale": "running"}
    raw = {"dtype": "float32", "field": "price"}
    sensors = {"dtype": "float64", "shape": [3], "scale": "running"}
    windows = {"MILLRACE_WINDOWS": json.dumps({"length": 5, "by": "user"})}
    settings = load_text(**variables(price=price, raw=raw, sensors=sensors), **windows).settings
    fields = {field.name: (field.shape, field.scaled) for field in settings.row_schema.features}
    assert fields == {"user": ((), None), "price": ((5,), ()), "raw": ((5,), None), "sensors": ((5, 3), (3,))}
    _, scaled, plain, _ = settings.row_schema.features
    assert scaled.reads_like(plain), "one column serves both"


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        ({"dtype": "int64"}, "price.scale: what is scaled is no int64 any more; write dtype: float32"),
        ({"dtype": "float32", "shape": [3], "pad": 0}, "price.scale: a list of one length can be scaled"),
        ({"dtype": "float32", "shape": [8, 8, 3], "image": "bytes"}, "scale: this is nothing for an image"),
        ({"dtype": "float32", "scale": "quantiles"}, "running"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_the_way_out(load_text: Any, feature: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load_text(**variables(price={"scale": "running", **feature}))
