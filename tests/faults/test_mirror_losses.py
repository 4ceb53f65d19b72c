"""Row 46: the volume is removed after a kill, and the trainer resumes from the mirror of its checkpoints."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.mirror_losses import LossFigures, lose

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(46)]
CI_LOSSES = 3
"""One of them at a failpoint."""
S3_LOSSES = 9
"""One of them at each failpoint."""


def test_whenever_the_volume_is_lost_the_newest_mirrored_checkpoint_is_resumed_from(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = lose(broker, tmp_path, losses=CI_LOSSES, seed=seed, place=tmp_path / "mirror", on_strike=print)
    record_property("mirror", figures.summary())
    assert_nothing_was_lost(figures, CI_LOSSES)


@pytest.mark.nightly  # in the gate the mirror is in a folder
def test_whenever_the_volume_is_lost_the_newest_checkpoint_in_s3_is_resumed_from(
    broker: str, bucket: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = lose(broker, tmp_path, losses=S3_LOSSES, seed=seed, place=bucket, on_strike=print)
    record_property("mirror in s3", figures.summary())
    assert_nothing_was_lost(figures, S3_LOSSES)


def assert_nothing_was_lost(figures: LossFigures, losses: int) -> None:
    """Compare the figures with what is promised."""
    assert (figures.losses, figures.wrong, figures.lost, figures.learnt_twice) == (losses, 0, 0, 0)
    assert figures.resumed >= losses - 1
    assert figures.points.total() == losses // 3
