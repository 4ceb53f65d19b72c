"""`training.memory` and `training.members`: what it needs, and what is refused beside it."""

from typing import Any

import pytest

from millrace.app.settings.yaml_file import SettingsError

MEMORY = {
    "MILLRACE_TRAINING__MEMORY": "300",
    "MILLRACE_TRAINING__PASSES": "8",
    "MILLRACE_TRAINING__BATCH_SIZE": "32",
}
TOGETHER = {"TRAINING__ROWS": "together", "TRAINING__PARTIAL_BATCHES": "wait", "TRAINING__REPLICAS": "1"}


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"TRAINING__PASSES": "1"}, "memory: the passes after the first draw from it, .* set training.passes: 8"),
        (
            {"TRAINING__BATCH_SIZE": "1024"},
            "memory: 300 records are fewer than one batch of 1024; set .*batch_size: 32",
        ),
        (TOGETHER, "memory: training.rows: together compares the rows of a batch"),
        ({"SCALE__WORKERS": "2"}, "scale: 2 workers: training.memory works with one worker only; leave it out"),
    ],
)
def test_what_does_not_go_with_a_memory_is_refused_by_name(
    load_text: Any, variables: dict[str, str], text: str
) -> None:
    load_text(**MEMORY)
    with pytest.raises(SettingsError, match=text):
        load_text(**MEMORY | {f"MILLRACE_{name}": value for name, value in variables.items()})


MEMBERS = {**MEMORY, "MILLRACE_TRAINING__MEMBERS__RECENT": "300"}
del MEMBERS["MILLRACE_TRAINING__MEMORY"]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"TRAINING__MEMORY": "300"}, "memory: training.members have memories of their own; leave one"),
        ({"TRAINING__PASSES": "1"}, "members: the passes after the first draw from it, .* set training.passes: 8"),
        ({"TRAINING__BATCH_SIZE": "1024"}, "members: 300 records are fewer than one batch of 1024"),
        ({"TRAINING__MEMBERS__SINCE_DRIFT": "300"}, "since_drift: it is not more than recent, 300; set it to 10000"),
        (TOGETHER, "members: training.rows: together compares the rows of a batch"),
        ({"SCALE__WORKERS": "2"}, "scale: 2 workers: training.members work with one worker only; leave them out"),
    ],
)
def test_what_does_not_go_with_members_is_refused_by_name(load_text: Any, variables: dict[str, str], text: str) -> None:
    load_text(**MEMBERS)
    with pytest.raises(SettingsError, match=text):
        load_text(**MEMBERS | {f"MILLRACE_{name}": value for name, value in variables.items()})
