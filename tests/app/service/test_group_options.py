"""What the service makes of the settings and options of a group."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.app.service.group_service import GroupService
from millrace.app.service.kafka_stream import feed_options
from millrace.app.service.service import RunOptions
from millrace.app.settings import Loaded, load
from millrace.consumers.errors import ConfigError
from millrace.pipelines.stream.feed import FeedOptions
from millrace.training.errors import PeerLostError

pytestmark = pytest.mark.tensorflow
CONFIG = """\
name: clicks
kafka:   {bootstrap_servers: [127.0.0.1:1], topics: [clicks]}
records: {features: {x: {dtype: float32, shape: [6], missing: 0}}, label: {y: float32}}
model:   {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """Two workers that wait 0.4 s for each other's blocks."""
    (tmp_path / "model.py").write_text("def build_model(): ...\n")
    (tmp_path / "clicks.yaml").write_text(CONFIG)
    here = {"MILLRACE_SCALE__WORKERS": "2", "MILLRACE_SCALE__INDEX": "0", "MILLRACE_SCALE__PATIENCE": "400ms"}
    return load(tmp_path / "clicks.yaml", here)


def test_late_blocks_are_filled_for_as_long_as_a_group_waits_for_them(loaded: Loaded) -> None:
    alone = loaded.settings.scale.model_copy(update={"workers": 1})
    assert feed_options(loaded.settings).grace_s == 0.4
    assert feed_options(loaded.settings.model_copy(update={"scale": alone})).grace_s == FeedOptions(max_bytes=1).grace_s


def test_a_number_of_records_is_refused_in_a_group_with_the_way_out(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match=r"--max-records: this needs scale.workers: 1; a group ends by --until"):
        GroupService(loaded, RunOptions(max_records=5))


def test_a_chief_resumes_from_number_0_and_counts_it_for_no_progress(loaded: Loaded) -> None:
    for last, resumes in ((None, False), (SimpleNamespace(), True)):
        service = GroupService(loaded, RunOptions(start_over=True))
        saving: Any = SimpleNamespace(last=last)
        service._saving, service.error = saving, PeerLostError("a worker is gone")
        again = service.again()
        assert again is not None
        assert (again.resumes, again.saved) == (resumes, False)
