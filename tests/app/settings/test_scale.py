"""`scale`: what a group of workers needs, and which of them this process is."""

from typing import Any

import pytest

from millrace.app.settings.sections.scale import ScaleSettings
from millrace.app.settings.yaml_file import SettingsError
from millrace.consumers.section import SettingError


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"TRAINING__BATCH_SIZE": "1000"}, "training.batch_size is 1000, which 3 workers cannot share evenly"),
        ({"TRAINING__REPLICAS": "3"}, "training.replicas is 3; write auto"),
        (
            {"TRAINING__ROWS": "together", "TRAINING__PARTIAL_BATCHES": "wait", "TRAINING__REPLICAS": "1"},
            "training.rows: together works with one worker only",
        ),
        ({"TRAINING__PARTIAL_BATCHES": "wait"}, "training.partial_batches: wait works with one worker only"),
        (
            {"TRAINING__DETERMINISTIC": "true", "TRAINING__MAX_WAIT": "null", "TRAINING__REPLICAS": "1"},
            "training.deterministic works with one worker only",
        ),
    ],
)
def test_what_a_group_cannot_do_is_refused_at_the_number_of_workers(
    load_text: Any, variables: dict[str, str], text: str
) -> None:
    ours = {f"MILLRACE_{name}": value for name, value in ({"TRAINING__BATCH_SIZE": "999"} | variables).items()}
    with pytest.raises(SettingsError, match=rf"scale: 3 workers: {text}"):
        load_text(**ours, MILLRACE_SCALE__WORKERS="3")


@pytest.mark.parametrize(("host", "index"), [("millrace-0", 0), ("millrace-workers-0", 1), ("millrace-workers-1", 2)])
def test_a_worker_is_known_by_the_ordinal_of_its_pod(host: str, index: int) -> None:
    assert ScaleSettings(workers=3).own_index(host) == index


@pytest.mark.parametrize("host", ["millrace-workers-2", "other-0", "millrace"])
def test_a_host_that_is_none_of_the_workers_is_refused(host: str) -> None:
    with pytest.raises(SettingError, match="which is neither millrace-0 nor millrace-workers-0 to millrace-workers-1"):
        ScaleSettings(workers=3).own_index(host)
