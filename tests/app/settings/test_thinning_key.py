"""`thinning`: which keys can choose records."""

import json
from typing import Any

import pytest

from millrace.app.settings.yaml_file import SettingsError


@pytest.mark.parametrize(("by", "text"), [("usr", "there is no feature 'usr'"), ("price", "'price' is float32")])
def test_a_key_that_is_none_is_refused(load_text: Any, by: str, text: str) -> None:
    features = {"user": "int64", "price": "float32"}
    given = {"MILLRACE_RECORDS__FEATURES": features, "MILLRACE_THINNING": {"share": 0.1, "by": by}}
    with pytest.raises(SettingsError, match=text):
        load_text(**{name: json.dumps(value) for name, value in given.items()})


def test_a_key_without_a_share_is_warned_of(load_text: Any) -> None:
    (warning,) = load_text(MILLRACE_THINNING=json.dumps({"by": "price"})).warnings
    assert warning.startswith("thinning.by has no effect")
