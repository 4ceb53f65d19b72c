"""Labels that are kept on disk: a restart has the same labels as one that reads all of them from Kafka again."""

import errno
import logging
import os
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.settings import to_decoder
from millrace.app.settings.sections.labels import LabelsSettings
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.clock import NEVER, Jumps
from millrace.pipelines.shaping.labels.index import Arrived, Joined
from millrace.pipelines.shaping.labels.join import LabelShaper
from millrace.pipelines.shaping.labels.keys import checks_of, hashes_of
from millrace.pipelines.shaping.labels.segments import LabelStretch, Segments
from millrace.training.ledger.interventions import Skip
from tests.conftest import WaitFor
from tests.pipelines.shaping.labels.label_log import CLICKS, Click, LabelLog, connected

RECORDS = Partition("shown", 0)
SETTINGS: Mapping[str, Any] = {
    "topics": ["later"],
    "join": {"record": "id", "label": "key"},
    "label": {"later": {"dtype": "float32", "absent": 0.0}},
    "within": "60s",
    "early": "1s",
    "take": "sum",
    "on_silence": "absent",
}
BEGAN = round(time.time() * 1000) - 3_600_000
KEYS = [f"key {at % 97}" * (1 + at % 9) for at in range(97)]


def clicks(count: int) -> list[Click]:
    """Return labels a tenth of a second apart, some out of order, and one by which the clock runs ahead."""
    random = np.random.default_rng(3)
    times = BEGAN + 100 * np.arange(count) - random.integers(900, size=count)
    times[130] += 55_000
    return [Click(KEYS[int(random.integers(97))], time, float(at)) for at, time in enumerate(times.tolist())]


class Life:
    """A join that reads a log up to its end, as one process would."""

    def __init__(
        self, log: LabelLog, wait_for: WaitFor, segments: Segments | None, saved: Any = None, jumps: Jumps | None = None
    ) -> None:
        sections = LabelsSettings.model_validate(SETTINGS)
        self.shaper, self.log, self.wait_for = LabelShaper(sections.rules), log, wait_for
        self.reader = connected(self.shaper, log, to_decoder(sections.records()), jumps, segments=segments)
        if saved is not None:
            self.shaper.load(*saved)
        self.shaper.open(1, {RECORDS: 0})

    def read(self) -> Any:
        """Read all labels; return what a checkpoint would have of them."""
        self.reader.want(2**60)
        self.wait_for(lambda: self.reader.clocks.positions() == {CLICKS: len(self.log.clicks)})
        return self.shaper.saved()

    def found(self, at: int) -> Joined:
        """Return what records of all keys get, of a time."""
        keys = np.array([key.encode() for key in KEYS], object)
        return self.shaper.index.match(hashes_of(keys), lambda rows: checks_of(keys[rows]), np.full(97, BEGAN + at))

    def same_as(self, other: "Life") -> bool:
        """Return whether records get the same at all times."""
        times = range(0, 60_000, 7_000)
        pairs = [(self.found(at), other.found(at)) for at in times]
        return all(
            (one.labelled == two.labelled).all()
            and (one.values["later"] == two.values["later"]).all()
            and (one.late == two.late).all()
            for one, two in pairs
        )


def test_a_restart_reads_only_what_came_after_the_last_segment(tmp_path: Path, wait_for: WaitFor) -> None:
    log = LabelLog(clicks(450))
    first = Life(log, wait_for, Segments(tmp_path, "it", labels=90))
    saved = first.read()
    first.reader.stop()
    assert len([*tmp_path.iterdir()]) == 4
    again = Life(log, wait_for, Segments(tmp_path, "it", labels=90), saved)
    plain = Life(log, wait_for, None, saved)
    assert log.begun == [0, 400, 0]
    states = again.read(), plain.read()
    assert states[0][1]["labels"] == states[1][1]["labels"] == saved[1]["labels"]
    assert plain.found(3000).labelled.any()
    assert again.same_as(plain)


def test_what_a_checkpoint_has_not_counted_is_read_again(tmp_path: Path, wait_for: WaitFor) -> None:
    log = LabelLog(clicks(600)[:330])
    life = Life(log, wait_for, Segments(tmp_path, "it", labels=150))
    saved = life.read()
    log.add(clicks(600)[330:])
    life.read()
    life.reader.stop()
    # A kill: the checkpoint is older than what is on disk.
    jumps = Jumps(None)
    jumps.add({CLICKS: (400, BEGAN + 90_000)})
    again = Life(log, wait_for, Segments(tmp_path, "it", labels=150), saved, jumps)
    plain = Life(log, wait_for, None, saved, jumps)
    assert log.begun == [0, 200, 0]
    assert again.read()[1]["labels"] == plain.read()[1]["labels"]
    assert again.same_as(plain)
    for life in (again, plain):
        life.reader.skip([Skip(order="fraud", partition=CLICKS, start=20, end=120, reason="clicks")])
    assert again.same_as(plain)


def test_labels_that_were_left_out_are_not_missed_by_an_older_checkpoint(tmp_path: Path, wait_for: WaitFor) -> None:
    log = LabelLog(clicks(400))
    old = Life(log, wait_for, None).read()
    arrays, facts = old
    newer = arrays, {**facts, "labels": {**facts["labels"], "floor": BEGAN + 20_000}}
    # What a restart reads again leaves out what it does not need, and so do the segments that it writes.
    facts = [Life(log, wait_for, one, newer).read()[1] for one in (None, Segments(tmp_path / "new", "it", labels=90))]
    Life(log, wait_for, Segments(tmp_path / "old", "it", labels=90)).read()
    for name in ("new", "old"):
        facts.append(Life(log, wait_for, Segments(tmp_path / name, "it", labels=90), newer).read()[1])
    assert log.begun == [0, 0, 0, 0, 400, 400]
    assert all(one["labels"] == facts[0]["labels"] for one in facts)
    again = Life(log, wait_for, Segments(tmp_path / "new", "it", labels=90), old)
    again.read()
    plain = Life(log, wait_for, None, old)
    plain.read()
    assert again.same_as(plain)


@pytest.mark.parametrize("harm", ["damaged", "gone", "of other settings"])
def test_a_segment_that_is_of_no_use_is_read_from_kafka(tmp_path: Path, wait_for: WaitFor, harm: str) -> None:
    log = LabelLog(clicks(450))
    saved = Life(log, wait_for, Segments(tmp_path, "it", labels=90)).read()
    second = sorted(tmp_path.iterdir())[1]
    if harm == "damaged":
        raw = bytearray(second.read_bytes())
        raw[-5] ^= 1
        second.write_bytes(raw)
    elif harm == "gone":
        second.unlink()
    made_by = "another" if harm == "of other settings" else "it"
    again, plain = Life(log, wait_for, Segments(tmp_path, made_by, labels=90), saved), Life(log, wait_for, None, saved)
    assert log.begun == [0, 0 if made_by == "another" else 100, 0]
    assert again.read()[1]["labels"] == plain.read()[1]["labels"]
    assert again.same_as(plain)


def test_a_segment_is_read_from_an_offset_and_a_time_on(tmp_path: Path, wait_for: WaitFor) -> None:
    log = LabelLog(clicks(200))
    life = Life(log, wait_for, Segments(tmp_path, "it", labels=90))
    life.read()
    life.reader.stop()
    floor, end = BEGAN + 4_500, len(log.clicks)
    kept = Segments(tmp_path, "it").read({CLICKS: (50, 0)}, {CLICKS: end}, floor)
    read = np.concatenate([piece.arrived.offsets for piece in kept])
    assert len(read) > 20
    behind = range(50, int(read[-1]) + 1)
    assert read.tolist() == [offset for offset in behind if log.clicks[offset].time >= floor]


def test_segments_go_when_their_labels_are_needed_no_more(tmp_path: Path, wait_for: WaitFor) -> None:
    segments = Segments(tmp_path, "it", labels=90)
    Life(LabelLog(clicks(450)), wait_for, segments).read()
    segments.saved(BEGAN + 15_000)
    assert len([*tmp_path.iterdir()]) == 4, "the newest checkpoint needs them still"
    segments.saved(BEGAN + 15_000)
    assert len([*tmp_path.iterdir()]) == 3
    segments.saved(BEGAN + 70_000)
    segments.saved(BEGAN + 70_000)
    assert [*tmp_path.iterdir()] == []


def test_chunks_without_a_label_do_not_pile_up(tmp_path: Path) -> None:
    segments = Segments(tmp_path, "it", labels=3)
    segments.add(stretch(0, 1))
    tracemalloc.start()
    for at in range(2_000):
        segments.add(stretch(1 + at, 0))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000
    assert [*tmp_path.iterdir()] == []
    segments.add(stretch(2_001, 2))
    pieces = [*Segments(tmp_path, "it").read({CLICKS: (0, 0)}, {CLICKS: 2_003}, BEGAN)]
    assert [(one.start, one.end, one.clock) for one in pieces] == [(0, 2_003, 2_003)]
    assert pieces[0].arrived.offsets.tolist() == [0, 2_001, 2_002]


def test_chunks_with_a_label_each_take_little_more_than_their_labels(tmp_path: Path) -> None:
    segments = Segments(tmp_path, "it")
    tracemalloc.start()
    for at in range(2_000):
        segments.add(stretch(at, 1))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 200_000


def stretch(start: int, labels: int) -> LabelStretch:
    """Return a chunk of so many labels, or one offset that has none."""
    offsets = np.arange(start, start + labels)
    arrived = Arrived(
        partition=0,
        hashes=offsets,
        checks=offsets.astype(np.uint32),
        times=BEGAN + offsets,
        clocks=offsets,
        offsets=offsets,
        values={"later": offsets.astype(np.float32)},
    )
    end = start + max(labels, 1)
    return LabelStretch(partition=CLICKS, start=start, end=end, clock=end, floor=NEVER, arrived=arrived)


def test_a_full_disk_is_told_once_and_stops_nothing(
    tmp_path: Path, wait_for: WaitFor, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    log = LabelLog(clicks(450))
    with caplog.at_level(logging.WARNING):
        life = Life(log, wait_for, Segments(tmp_path / "file" / "below", "it", labels=90))
        life.read()
    plain = Life(log, wait_for, None)
    plain.read()
    assert life.same_as(plain)
    assert [record.getMessage() for record in caplog.records if "kept" in record.getMessage()] == [
        f"labels are not kept for the next start, which takes longer: {os.strerror(errno.ENOTDIR)}"
    ]


def test_a_text_has_the_same_number_in_every_process() -> None:
    texts = np.array([b"", b"a", b"a\0", b"i17", b"x" * 64, b"x" * 65, b"x" * 1000], object)
    together, alone = hashes_of(texts), [int(hashes_of(texts[at : at + 1])[0]) for at in range(len(texts))]
    assert together.tolist() == alone
    assert len({*alone}) == len(texts)
    assert alone[3] == -2572449559329793192
