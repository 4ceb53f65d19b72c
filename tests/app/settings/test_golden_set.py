"""`golden`: with which other settings it can be."""

import json
from collections.abc import Callable
from typing import Any

import pytest

WINDOWS = json.dumps({"length": 5, "by": "hour"})
WORKERS = json.dumps({"workers": 2, "addresses": ["a:1", "b:1"]})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"WINDOWS": WINDOWS}, "golden: path: with windows a row is made of several records"),
        (
            {"RECORDS__LABEL": '{"field": "kind", "dtype": "int32", "classes": 100}'},
            "golden: path: with records.label.classes",
        ),
        ({"ARCHIVE__PATH": "./golden"}, "golden: path: this is archive.path"),
        ({"SCALE": WORKERS}, "2 workers: golden.path works with one worker only"),
    ],
)
def test_a_golden_set_that_cannot_be_is_refused_with_the_reason(
    problem: Callable[..., str], more: dict[str, str], text: str
) -> None:
    assert text in problem(
        "", **{f"MILLRACE_{name}": value for name, value in {"GOLDEN__PATH": "./golden", **more}.items()}
    )


def test_a_file_leaves_out_no_record_and_a_path_is_below_the_folder(load_text: Any, tmp_path: Any) -> None:
    settings = load_text(MILLRACE_GOLDEN__PATH="./golden.parquet").settings
    assert settings.golden.path == tmp_path / "golden.parquet"
    assert settings.golden.used
    assert settings.shapers() == ()
