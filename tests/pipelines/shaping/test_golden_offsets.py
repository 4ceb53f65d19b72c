"""The golden set in the topics: the very offsets of an archive are left out, of its own partitions alone."""

from pathlib import Path

import pytest

from millrace.consumers.records import Partition
from millrace.pipelines.shaping import GoldenSettings
from tests.consumers.archive.records import chunk, shard_of
from tests.pipelines.shaping.test_every_shaper import COUNT, SCHEMA, decoded_of

CLICKS, VIEWS = Partition("clicks", 0), Partition("views", 0)


def test_the_offsets_that_shards_cover_are_left_out_and_no_others(tmp_path: Path) -> None:
    covered = {*range(10, 30), *range(30, 41), *range(700, 701)}
    for start, end in ((10, 30), (30, 41), (700, 701)):
        shard_of(tmp_path, [chunk(start, end, [start], CLICKS)])
    shaper = GoldenSettings(path=tmp_path).shaper(SCHEMA)
    assert shaper is not None
    shape = shaper.open(1, {CLICKS: 0, VIEWS: 0})
    for partition, held in ((CLICKS, covered), (VIEWS, set[int]())):
        decoded = decoded_of(partition, 0, COUNT)
        rows, left_out = shape(decoded)
        assert rows.offsets.tolist() == [at for at in decoded.offsets.tolist() if at not in held]
        assert left_out == [(at, "golden") for at in decoded.offsets.tolist() if at in held]


def test_a_checkpoint_of_another_set_or_of_none_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, end in (("one", 20), ("other", 21)):
        shard_of(tmp_path / name, [chunk(10, end, partition=CLICKS)])
    one, other = (GoldenSettings(path=tmp_path / name).shaper(SCHEMA) for name in ("one", "other"))
    assert one is not None
    assert other is not None
    one.load(*one.saved())
    assert caplog.text == ""
    other.load(*one.saved())
    assert "the checkpoint was made of another set" in caplog.text
    other.load({}, {})
    assert "the checkpoint was made without a golden set" in caplog.text
