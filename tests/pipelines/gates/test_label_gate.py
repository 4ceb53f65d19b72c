"""The gate of labels: records wait until every label that may belong to them is read, or is certain not to be there."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.settings import to_decoder
from millrace.app.settings.sections.labels import LabelsSettings
from millrace.consumers.errors import DataLossError, MillraceError, UnreachableError
from millrace.consumers.records import Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.gates.gate import HeldBy
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.labels import clock
from millrace.pipelines.shaping.labels.clock import NEVER, Jumps, LabelClocks
from millrace.pipelines.shaping.labels.index import Arrived
from millrace.pipelines.shaping.labels.join import UNKNOWN, Ends, LabelShaper
from millrace.pipelines.shaping.labels.silence import Silence, Verdict
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from tests.conftest import WaitFor
from tests.pipelines.shaping.labels.label_log import CLICKS, Click, LabelLog, connected
from tests.pipelines.shaping.test_every_shaper import facts_of
from tests.pipelines.stream.test_decode import chunk_of

SCHEMA = Schema(
    features=(Field(name="id", source="id", dtype="int64"),), key=Field(name="key", source="id", dtype="int64")
)
DECODER = make_decoder("json", SCHEMA)
PARTITION = Partition("clicks", 0)
WITHIN, EARLY = 10_000, 1_000


def records(*times: int, start: int = 0) -> Decoded:
    """Return records whose key is their offset."""
    chunk = chunk_of([json.dumps({"id": start + place}).encode() for place in range(len(times))], start)
    chunk = replace(chunk, partition=PARTITION, timestamps=np.array(times, np.int64), fetched_at=time.monotonic())
    return decode_chunk(chunk, DECODER)


class Joined:
    """A join of a log in memory."""

    def __init__(
        self,
        log: LabelLog,
        jumps: Jumps | None = None,
        saved: Any = None,
        ends: Callable[[], Ends] = lambda: UNKNOWN,
        first: Sequence[Partition] = (CLICKS,),
        **settings: object,
    ) -> None:
        given = {
            "topics": ["later"],
            "join": {"record": "id", "label": "key", "dtype": "int64"},
            "label": {"later": {"dtype": "float32", "absent": 0.0}},
            "within": f"{WITHIN}ms",
            "early": f"{EARLY}ms",
            **settings,
        }
        sections = LabelsSettings.model_validate(given)
        self.shaper = LabelShaper(sections.rules)
        self.reader = connected(self.shaper, log, to_decoder(sections.records()), jumps, ends, first=first)
        self.gate = LabelGate(sections.rules, self.reader)
        if saved is not None:
            self.shaper.load(*saved)
        self.shape = self.shaper.open(1, {PARTITION: 0 if saved is None else 1})


@pytest.fixture
def now() -> int:
    return round(time.time() * 1000)


def test_records_wait_until_the_clock_of_the_labels_has_passed_what_they_need(now: int, wait_for: WaitFor) -> None:
    began = now - 3_600_000
    log = LabelLog([Click(1, began + 500)])
    joined, waiting = Joined(log), records(began, began + 1)
    for _ in range(5):
        assert not joined.gate.admits(waiting), "a label may come for ten seconds"
        time.sleep(0.02)
    log.add([Click(9, began + WITHIN + EARLY)])
    time.sleep(0.1)
    assert not joined.gate.admits(waiting), "the second record is due a millisecond later"
    log.add([Click(9, began + WITHIN + EARLY + 1)])
    wait_for(lambda: joined.gate.admits(waiting))
    rows, left_out = joined.shape(waiting)
    assert (rows.labels["later"].tolist(), left_out) == ([0.0, 1.0], [])


def test_a_topic_that_has_been_silent_for_far_too_long_holds_the_records(now: int, wait_for: WaitFor) -> None:
    # A hundred labels a tenth of a second apart, the last one a minute ago.
    log = LabelLog([Click(-1, now - 60_000 - 100 * at) for at in range(150, 0, -1)])
    joined, waiting = Joined(log), records(now - 30_000)
    wait_for(lambda: not joined.gate.admits(waiting) and joined.gate.held() is not None)
    held = joined.gate.held()
    assert held is not None
    assert (held.by, "no label has come for" in held.why) == (HeldBy.LABELS, True)
    assert not joined.gate.let_pass({}), "to resume alone does not say that there are none"
    assert joined.gate.held() is not None
    joined.gate.assume_absent()
    wait_for(lambda: joined.gate.admits(waiting))
    assert joined.gate.held() is None


def test_a_topic_without_any_label_holds_the_records(now: int, wait_for: WaitFor) -> None:
    log = LabelLog()
    joined, waiting = Joined(log, within="200ms"), records(now - 30_000)
    wait_for(lambda: not joined.gate.admits(waiting) and joined.gate.held() is not None)
    held = joined.gate.held()
    assert held is not None
    assert "no label has come at all on later" in held.why
    assert joined.shaper.figures().silent_s > 0  # type: ignore[union-attr]
    joined.gate.assume_absent()
    wait_for(lambda: joined.gate.admits(waiting))
    assert joined.gate.held() is None


def test_labels_that_are_not_read_yet_are_no_silence(now: int) -> None:
    """After a restart one partition may be read to its end while another has all labels of the time between."""
    other = Partition("later", 1)

    class Behind(LabelLog):
        def ends(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
            ends = {CLICKS: len(self.clicks), other: 3}
            return ends, ends

    log = Behind([Click(-1, now - 60_000 - 100 * at) for at in range(150, 0, -1)])
    joined, waiting = Joined(log, first=(CLICKS, other)), records(now - 30_000)
    for _ in range(30):
        assert not joined.gate.admits(waiting)
        time.sleep(0.05)
    assert joined.reader.clocks.positions() == {CLICKS: 150, other: 0}
    assert joined.gate.held() is None


def test_a_label_that_comes_ends_the_hold(now: int, wait_for: WaitFor) -> None:
    log = LabelLog([Click(-1, now - 60_000 - 100 * at) for at in range(150, 0, -1)])
    joined, waiting = Joined(log), records(now - 30_000)
    wait_for(lambda: not joined.gate.admits(waiting) and joined.gate.held() is not None)
    log.add([Click(0, now - 25_000, 1.0), Click(-1, now)])
    wait_for(lambda: joined.gate.admits(waiting))
    assert joined.gate.held() is None
    assert joined.shape(waiting)[0].labels["later"].tolist() == [1.0]


def test_a_partition_that_is_quiet_as_it_often_is_counts_as_read(now: int, wait_for: WaitFor) -> None:
    # Five seconds apart: six seconds without one mean nothing.
    log = LabelLog([Click(-1, now - 6_000 - 5_000 * at) for at in range(150, -1, -1)])
    joined, waiting = Joined(log), records(now - WITHIN - 3_000)
    wait_for(lambda: joined.gate.admits(waiting))
    assert joined.gate.held() is None


def test_an_open_transaction_is_no_silence(now: int) -> None:
    class Open(LabelLog):
        def ends(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
            return {CLICKS: len(self.clicks)}, {CLICKS: len(self.clicks) + 3}

    log = Open([Click(-1, now - 6_000 - 5_000 * at) for at in range(150, -1, -1)])
    joined, waiting = Joined(log), records(now - WITHIN - 3_000)
    for _ in range(30):
        assert not joined.gate.admits(waiting)
        time.sleep(0.05)
    assert joined.gate.held() is None


def test_a_kafka_that_does_not_answer_keeps_nobody_waiting(now: int) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Away(LabelLog):
        def ends(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
            asked.set()
            assert answer.wait(20)
            raise UnreachableError("no answer")

    joined = Joined(Away())
    joined.reader.through(now - 3_000)
    assert asked.wait(10)
    began = time.monotonic()
    with joined.reader.still() as read:
        assert read.positions == {CLICKS: 0}
    assert joined.shaper.saved()[1]["labels"]["late"] == 0
    assert time.monotonic() - began < 5
    answer.set()


def test_what_ends_the_reading_is_told_to_those_who_wait(now: int, wait_for: WaitFor) -> None:
    class Gone(LabelLog):
        def ends(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
            raise DataLossError("the labels are gone")

    joined, waiting = Joined(Gone()), records(now - WITHIN - 3_000)

    def told() -> bool:
        with pytest.raises(DataLossError, match="the labels are gone"):
            joined.gate.admits(waiting)
        return True

    time.sleep(0.3)
    assert joined.gate.admits(records()) is True
    joined.reader.through(now)
    wait_for(lambda: joined.reader._error is not None)
    assert told()


def test_more_labels_than_memory_may_hold_end_the_run_and_none_is_dropped(now: int, wait_for: WaitFor) -> None:
    began = now - 3_600_000
    log = LabelLog([Click(key, began + key // 100, 1.0) for key in range(60_000)])
    joined = Joined(log, max_bytes="1MiB")

    def told() -> bool:
        try:
            joined.gate.admits(records(began + 500))
        except MillraceError as error:
            return "labels.max_bytes: " in str(error) and "raise it, or lower labels.within" in str(error)
        return False

    wait_for(told)
    assert joined.reader.index.waiting() > 10_000


def test_a_record_from_the_future_waits_no_longer_than_clocks_may_differ(now: int, wait_for: WaitFor) -> None:
    log = LabelLog([Click(-1, now - 100)])
    joined = Joined(log, on_silence="absent", within="200ms", early="500ms")
    began = time.monotonic()
    waiting = records(now + 86_400_000)
    wait_for(lambda: joined.gate.admits(waiting))
    assert 0.2 < time.monotonic() - began < 5


def test_records_that_are_due_do_not_wait_for_those_behind_them(now: int, wait_for: WaitFor) -> None:
    log = LabelLog([Click(-1, now - 60_000)])
    joined = Joined(log, on_silence="absent")
    wait_for(lambda: joined.gate.admits(records(now - 30_000)))
    times = [now - 30_000, now - 29_000, now - 4_000, now - 3_900, now - 1_500]
    chunk = replace(chunk_of([b'{"id": 1}'] * len(times), 7), partition=PARTITION, timestamps=np.array(times, np.int64))
    parts = joined.gate.portions(chunk)
    assert parts[0].timestamps.tolist() == times[:2]
    assert len(parts) > 2
    assert all(int(part.timestamps.max() - part.timestamps.min()) < 1_000 for part in parts[1:])
    assert [one for part in parts for one in part.timestamps.tolist()] == times
    assert [part.start for part in parts] == [7, *(part.end for part in parts[:-1])]


@pytest.mark.row(43)
def test_the_first_checkpoint_says_where_labels_begin_though_topics_have_grown_since(now: int) -> None:
    first = Joined(LabelLog())
    first.reader.stop()
    new = LabelShaper(first.shaper.rules)
    new.connect(first.shaper.connected._replace(first=lambda: {CLICKS: (7, NEVER)}))  # type: ignore[union-attr]
    saved = new.saved()
    log = LabelLog([Click(-1, now)] * 9)
    Joined(log, saved=saved)
    assert log.begun == [7]


@pytest.mark.row(43)
def test_after_a_restart_labels_behind_a_jump_are_counted_once(now: int, wait_for: WaitFor) -> None:
    began, settled = now - 3_600_000, records(now - 3_600_000 + 5)
    # A partition that was quiet at offset 150 goes on, with labels that nobody can use any more.
    quiet = Jumps(None)
    quiet.add({CLICKS: (150, now - 60_000)})
    times = [began + 10 * at for at in range(400)]
    log = LabelLog([Click(key, at) for key, at in enumerate(times)])
    ends = [now - 120_000, now - 30_000, now - 120_000, now - 30_000]
    accounts, saved = list[dict[str, Any]](), None
    for end in ends:
        joined = Joined(log, quiet, saved=saved, on_silence="absent")
        # A save before all is read again loses nothing.
        if saved is not None:
            assert joined.shaper.saved()[1]["labels"] == saved[1]["labels"]
        wait_for(lambda joined=joined, end=end: joined.reader.through(end) >= end)  # type: ignore[misc]
        if saved is None:
            rows = joined.shape(settled)[0]
            assert rows.labels["later"].tolist() == [1.0]
            joined.shaper.settle(facts_of(PARTITION, 0, 1, 1))
        saved = joined.shaper.saved()
        accounts.append(saved[1]["labels"])
        joined.reader.stop()
    assert [one["late"] for one in accounts] == [50, 250, 250, 250]
    assert [one["partitions"]["later:0"]["position"] for one in accounts] == [200, 400, 400, 400]


class Idle:
    """A join whose records end at an offset, and whose labels go on."""

    def __init__(self, now: int, *, asked: int, jumps: Jumps | None = None) -> None:
        self.log = LabelLog([Click(key, now - 60_000 + key) for key in range(10)])
        self.log.add([Click(-1, now - 100)])
        self.joined = Joined(self.log, jumps, ends=lambda: Ends({PARTITION: 1}, asked), on_silence="absent")

    def learn(self, rows: Decoded) -> list[float]:
        """Learn records; return the labels of those that are not too old."""
        return [float(one) for one in self.joined.shape(rows)[0].labels["later"]]

    def settle(self, start: int, end: int, incarnation: int = 1) -> None:
        """Settle records, and let labels go."""
        self.joined.shaper.settle(facts_of(PARTITION, start, end, incarnation))
        self.joined.shaper.expire()


def test_ends_that_were_asked_for_long_ago_make_no_record_too_old(now: int, wait_for: WaitFor) -> None:
    first, held = records(now - 60_000), records(now - 60_000 + 3, start=1)
    idle = Idle(now, asked=now - 60_000)
    wait_for(lambda: idle.joined.gate.admits(first))
    assert idle.learn(first) == [1.0]
    idle.settle(0, 1)
    assert idle.learn(held) == [1.0]
    assert idle.joined.shaper.saved()[1]["partitions"][str(PARTITION)]["counts"]["too_old"] == 0


@pytest.mark.row(43)
def test_what_was_too_old_as_its_partition_was_quiet_stays_so_when_it_is_learnt_again(
    now: int, wait_for: WaitFor, tmp_path: Path
) -> None:
    first, late = records(now - 60_000), records(now - 60_000 + 3, now - 10_500, start=1)
    path = tmp_path / "jumps"
    idle = Idle(now, asked=now, jumps=Jumps(path))
    wait_for(lambda: idle.joined.gate.admits(late))
    idle.learn(first)
    # What is joined and not settled keeps its labels.
    ahead = Idle(now, asked=now)
    wait_for(lambda: ahead.joined.gate.admits(late))
    ahead.learn(first)
    assert len(ahead.learn(late)) == 2
    ahead.settle(0, 1)
    assert ahead.joined.shaper.saved()[1]["labels"]["floor"] < now - 60_000
    # What comes behind the ends that are known, and is late by more than `within`, is too old.
    idle.settle(0, 1)
    assert len(idle.learn(late)) == 1
    assert f"{PARTITION} 1 " in path.read_text()
    # Another process knows nothing of how far labels had been read when it came.
    again = Idle(now, asked=now - 120_000, jumps=Jumps(path))
    wait_for(lambda: again.joined.gate.admits(late))
    again.learn(first)
    again.settle(0, 1)
    assert len(again.learn(late)) == 1


def test_what_is_too_old_and_cannot_be_written_down_ends_the_run(now: int, wait_for: WaitFor) -> None:
    class Full(Jumps):
        def add(self, jumps: Mapping[Partition, tuple[int, int]]) -> None:
            if PARTITION in jumps:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().add(jumps)

    first, late = records(now - 60_000), records(now - 60_000 + 3, start=1)
    idle = Idle(now, asked=now, jumps=Full(None))
    wait_for(lambda: idle.joined.gate.admits(late))
    idle.learn(first)
    idle.settle(0, 1)
    with pytest.raises(MillraceError, match="cannot be written down: No space left"):
        idle.learn(late)


def test_a_jump_to_the_very_time_of_the_next_label_still_says_something() -> None:
    """With `early: 0` that label is late for a record that went by the jump, also when both are read again."""
    jumps = Jumps(None)
    clocks = LabelClocks(jumps, early_ms=0)
    clocks.begin({CLICKS: (0, NEVER)})
    clocks.jump({CLICKS: 0}, 5_000)
    assert read(clocks, 0, 5_000) == [5_000]
    again = LabelClocks(jumps, early_ms=0)
    again.begin({CLICKS: (0, NEVER)})
    assert read(again, 0, 5_000) == [5_000]


def read(clocks: LabelClocks, start: int, *times: int) -> list[int]:
    """Read labels of these times from an offset on; return the clock before each."""
    offsets = np.arange(start, start + len(times))
    before = clocks.before(CLICKS, offsets, np.array(times, np.int64)).tolist()
    clocks.read(CLICKS, start + len(times), offsets, np.array(times, np.int64))
    return [int(one) for one in before]


def test_no_record_goes_by_a_clock_before_the_labels_are_there(now: int, wait_for: WaitFor) -> None:
    began = now - 3_600_000
    log = LabelLog()
    joined, waiting, seen = Joined(log), records(began), list[bool]()
    insert = joined.shaper.index.insert

    def slowly(arrived: Arrived) -> None:
        """Take as long as it may on a busy machine."""
        for _ in range(10):
            seen.append(joined.gate.admits(waiting))
            time.sleep(0.01)
        insert(arrived)

    joined.shaper.index.insert = slowly  # type: ignore[method-assign]
    log.add([Click(0, began + 5, 1.0), Click(-1, began + WITHIN + EARLY + 1)])
    wait_for(lambda: joined.gate.admits(waiting))
    assert joined.shape(waiting)[0].labels["later"].tolist() == [1.0]
    assert len(seen) == 10
    assert not any(seen)


def test_jumps_outlive_a_kill_and_a_line_that_is_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "labels" / "jumps"
    jumps = Jumps(path)
    clocks = LabelClocks(jumps, early_ms=EARLY)
    clocks.begin({CLICKS: (0, NEVER)})
    assert read(clocks, 0, 5_000, 9_000) == [NEVER, 4_000]
    clocks.jump({CLICKS: 2}, 50_000)
    assert clocks.through() == 50_000
    assert read(clocks, 2, 10_000) == [50_000]
    with path.open("a") as file:
        file.write("later:0 3 99")
    again = LabelClocks(Jumps(path), early_ms=EARLY)
    again.begin({CLICKS: (0, NEVER)})
    assert read(again, 0, 5_000, 9_000, 10_000) == [NEVER, 4_000, 50_000]
    assert path.read_text() == "later:0 2 50000\n"


def test_a_full_disk_makes_records_wait_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jumps"
    jumps = Jumps(path)
    jumps.add({CLICKS: (1, 5)})
    write = os.write

    def full(handle: int, raw: memoryview) -> int:
        if len(raw) > 4:
            return write(handle, raw[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        clocks = LabelClocks(jumps, early_ms=EARLY)
        clocks.begin({CLICKS: (2, NEVER)})
        with pytest.raises(OSError, match="No space"):
            clocks.jump({CLICKS: 2}, 9)
        assert clocks.through() == 5, "nothing goes by what is not durable"
    assert path.read_text() == "later:0 1 5\n"
    clocks.jump({CLICKS: 2}, 9)
    assert clocks.through() == 9
    assert path.read_text() == "later:0 1 5\nlater:0 2 9\n"


def test_the_file_of_jumps_does_not_grow_while_a_partition_stays_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_MOST_LINES", 50)
    path = tmp_path / "jumps"
    jumps = Jumps(path)
    for at in range(120):
        jumps.add({CLICKS: (7, at)})
    assert len(path.read_text().splitlines()) < 60
    ends, times = Jumps(path).of(CLICKS)
    assert (ends.tolist(), times.tolist()) == ([7], [119])


def test_a_jump_is_kept_only_as_long_as_it_says_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_MOST_LINES", 50)
    path = tmp_path / "jumps"
    clocks = LabelClocks(Jumps(path), early_ms=EARLY)
    clocks.begin({CLICKS: (0, NEVER)})
    # A label each five seconds, and a jump between each and the next; one label comes when its clock has passed it.
    seen = list[int]()
    for at in range(300):
        late = 4_000 if at == 280 else 0
        seen += read(clocks, at, 5_000 * at - late)
        clocks.jump({CLICKS: at + 1}, 5_000 * at + 3_500)
    ends, _ = Jumps(path).of(CLICKS)
    assert len(path.read_text().splitlines()) < 110
    assert 280 in ends
    # Whoever reads again finds the same labels late, and none other.
    again = LabelClocks(Jumps(path), early_ms=EARLY)
    again.begin({CLICKS: (0, NEVER)})
    times = [5_000 * at - (4_000 if at == 280 else 0) for at in range(300)]
    found = read(again, 0, *times)
    assert (
        [at for at in range(300) if found[at] > times[at]] == [at for at in range(300) if seen[at] > times[at]] == [280]
    )


def test_one_outage_does_not_teach_that_outages_are_usual() -> None:
    silence = Silence(within_ms=600_000)
    assert silence.patience_ms(0) == 600_000, "nothing is known yet"
    times = np.arange(0, 500_000, 1_000)
    silence.note(times)
    assert silence.patience_ms(500_000) == 3_000
    silence.note(times + 1_400_000)
    assert silence.patience_ms(1_900_000) == 3_000, "a gap of a quarter of an hour was seen once"
    assert silence.judge(1_900_000) == Verdict(until=1_900_000, silent_ms=None)
    assert silence.judge(1_902_500) == Verdict(until=1_899_000, silent_ms=3_500)
    silence.note(times[:3], known=True)
    assert silence.judge(1_902_500) == Verdict(until=1_899_000, silent_ms=3_500)


def test_before_the_first_label_the_silence_counts_from_when_it_was_first_judged() -> None:
    silence = Silence(within_ms=10_000)
    assert silence.judge(1_000_000) == Verdict(until=NEVER, silent_ms=None)
    assert silence.judge(1_010_000) == Verdict(until=NEVER, silent_ms=None)
    again = restarted(silence)
    assert again.judge(1_010_001) == Verdict(until=NEVER, silent_ms=10_001), "a restart does not begin to wait again"
    again.assume(1_020_000)
    assert again.judge(1_021_000) == Verdict(until=1_021_000, silent_ms=None)


def test_a_restart_knows_the_newest_label_though_none_waits() -> None:
    hour = 3_600_000
    silence = Silence(within_ms=10_000)
    silence.note(np.arange(0, 400 * hour, 2 * hour))
    assert silence.judge(399 * hour) == Verdict(until=399 * hour, silent_ms=None)
    again = restarted(silence)
    assert again.judge(399 * hour) == Verdict(until=399 * hour, silent_ms=None)
    assert again.judge(405 * hour) == Verdict(until=398 * hour, silent_ms=7 * hour)
    # The gap in which it was restarted counts as any other.
    for one in (silence, again):
        one.note(np.array([401 * hour]))
    assert again.saved() == silence.saved()


def test_a_restart_knows_that_there_are_no_labels() -> None:
    silence = Silence(within_ms=10_000)
    silence.note(np.array([1_000]))
    silence.assume(50_000)
    facts = {name: silence.saved()[name] for name in ("gaps_ms", "labels", "assumed_absent_ms")}
    for again in (restarted(silence), restarted(facts)):
        assert again.judge(59_000) == Verdict(until=59_000, silent_ms=None)
        assert again.judge(61_000) == Verdict(until=50_000, silent_ms=11_000)


def test_the_silence_of_an_older_checkpoint_counts_from_when_it_was_first_judged() -> None:
    again = restarted({"gaps_ms": np.zeros((24, 3), np.int64).tolist(), "labels": 7, "assumed_absent_ms": []})
    assert again.any_came
    assert again.judge(1_000_000) == Verdict(until=NEVER, silent_ms=None)
    assert again.judge(1_011_000) == Verdict(until=NEVER, silent_ms=11_000)


def restarted(saved: Silence | dict[str, Any]) -> Silence:
    """Return what another process knows by a checkpoint."""
    facts = saved.saved() if isinstance(saved, Silence) else saved
    again = Silence(within_ms=10_000)
    again.load(json.loads(json.dumps(facts)))
    return again
