"""`training.rows: together`: what a loss that compares rows needs, and what is refused beside it."""

from typing import Any

import pytest

from millrace.app.settings.yaml_file import SettingsError

TOGETHER = {
    "MILLRACE_TRAINING__ROWS": "together",
    "MILLRACE_TRAINING__PARTIAL_BATCHES": "wait",
    "MILLRACE_TRAINING__REPLICAS": "1",
}


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"TRAINING__PARTIAL_BATCHES": "pad"}, "rows: together needs training.partial_batches: wait"),
        ({"TRAINING__REPLICAS": "auto"}, "rows: together needs training.replicas: 1, not auto"),
        ({"RESERVOIR__SIZE": "1000"}, "a reservoir adds absent ones until it is full; leave it out"),
    ],
)
def test_what_would_bring_absent_rows_into_a_batch_is_refused(
    load_text: Any, variables: dict[str, str], text: str
) -> None:
    load_text(**TOGETHER)
    with pytest.raises(SettingsError, match=text):
        load_text(**TOGETHER | {f"MILLRACE_{name}": value for name, value in variables.items()})
