"""The join of two workers: both read all labels, go by the same clocks, and count each label once."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millrace.app.settings import to_decoder
from millrace.app.settings.sections.labels import LabelsSettings
from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.labels.clock import Jumps
from millrace.pipelines.shaping.labels.group_join import GroupJoin
from millrace.pipelines.shaping.labels.index import FITTED, USED
from millrace.pipelines.shaping.labels.join import LabelShaper
from millrace.pipelines.shaping.labels.label_reader import Role
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.training.checkpoints.parts import PartState
from millrace.training.group.one_state import remembered_of, remembered_portion
from tests.conftest import WaitFor
from tests.pipelines.shaping.labels.label_log import CLICKS, Click, LabelLog, connected
from tests.pipelines.shaping.test_every_shaper import facts_of
from tests.pipelines.stream.test_decode import chunk_of

pytestmark = [pytest.mark.row(31), pytest.mark.row(43)]
DECODER = make_decoder(
    "json",
    Schema(features=(Field(name="id", source="id", dtype="int64"),), key=Field(name="key", source="id", dtype="int64")),
)
WITHIN, EARLY = 10_000, 1_000
LABELS = [Partition("later", 0), Partition("later", 1)]
READING_ALL, READING_THEIR_OWN = (Role.LEADS, Role.FOLLOWS), (Role.OWN, Role.OWN)
SECTIONS = LabelsSettings.model_validate(
    {
        "topics": ["later"],
        "join": {"record": "id", "label": "key", "dtype": "int64"},
        "label": {"later": {"dtype": "float32", "absent": 0.0}},
        "within": f"{WITHIN}ms",
        "early": f"{EARLY}ms",
        "on_silence": "absent",
    }
)


class Threads:
    """Brings bytes from one worker to the other, each on a thread of its own."""

    def __init__(self, number: int, shared: list[bytes], barrier: threading.Barrier) -> None:
        self._number, self._shared, self._barrier = number, shared, barrier

    def gather(self, mine: bytes) -> list[bytes]:
        self._shared[self._number] = mine
        self._barrier.wait(10)
        found = [*self._shared]
        self._barrier.wait(10)
        return found

    def collect(self, mine: bytes) -> list[bytes]:
        found = self.gather(mine)
        return [] if self._number else found


class Worker:
    """A worker that reads one partition of records."""

    def __init__(self, role: Role, number: int, clicks: Sequence[Click], saved: PartState | None) -> None:
        self.partition = Partition("clicks", number)
        self.jumps, self.shaper = Jumps(None), LabelShaper(SECTIONS.rules)
        decoder = to_decoder(SECTIONS.records())
        places = LABELS if role is Role.OWN else [CLICKS]
        self.log = LabelLog(clicks, places[number % len(places)])
        # The clock of the other is an hour ahead, as if it read that much later.
        wall = time.time if role is Role.LEADS else lambda: time.time() + 3600
        self.reader = connected(self.shaper, self.log, decoder, self.jumps, role=role, wall=wall, first=places)
        if saved is not None:
            self.shaper.load(saved.arrays, saved.facts)
        join = GroupJoin.of([self.shaper], is_chief=not number)
        assert join is not None
        self.join, self.gate = join, LabelGate(SECTIONS.rules, self.reader)

    def open(self, at: int = 0) -> None:
        self.shape = self.shaper.open(1, {self.partition: at})

    def records(self, at: int, start: int = 0) -> Decoded:
        """Return a record of a time, whose key is the number of its partition and one more; later ones have others."""
        key = self.partition.number + 1 if start == 0 else 1000 + start
        chunk = replace(chunk_of([json.dumps({"id": key}).encode()], start), partition=self.partition)
        return decode_chunk(replace(chunk, timestamps=np.array([at]), fetched_at=time.monotonic()), DECODER)

    def learn(self, records: Decoded) -> list[float]:
        rows, _ = self.shape(records)
        self.shaper.settle(facts_of(self.partition, records.start, records.end, 1))
        return [float(one) for one in rows.labels["later"]]


class Workers:
    """A chief and another."""

    def __init__(self, clicks: Sequence[Click], saved: PartState | None, at: int, roles: Sequence[Role]) -> None:
        shares = [
            None if saved is None else remembered_portion(saved, [Partition("clicks", number)]) for number in (0, 1)
        ]
        self.both = [Worker(role, at, clicks, shares[at]) for at, role in enumerate(roles)]
        self.chief, self.other = self.both
        barrier, shared = threading.Barrier(2), [b"", b""]
        self._threads = [Threads(number, shared, barrier) for number in range(2)]
        self._pool = ThreadPoolExecutor(2)
        self._all(lambda one, threads: one.join.begin(threads))
        for one in self.both:
            one.open(at)

    def _all(self, each: Callable[[Worker, Threads], None]) -> None:
        for done in [self._pool.submit(each, *both) for both in zip(self.both, self._threads, strict=True)]:
            done.result(20)

    def add(self, *clicks: Click) -> None:
        """Append labels."""
        for one in self.both:
            one.log.add(clicks)

    def met(self) -> "Workers":
        """Return both after they have told each other how far they are."""
        self._all(lambda one, threads: one.join.meet(threads))
        return self

    def admits(self, worker: Worker, records: Decoded) -> bool:
        self.met()
        return worker.gate.admits(records)

    def account(self) -> dict[str, int]:
        """Return what became of the labels, as `/status` of all workers together shows it."""
        found = [dict(one.shaper.figures().labels) for one in self.both]  # type: ignore[union-attr]
        return {name: sum(one[name] for one in found) for name in found[0] if sum(one[name] for one in found)}

    def saved(self) -> PartState:
        """Return what a checkpoint holds."""
        self.met()
        shares = self.chief.join.whole([one.shaper.saved() for one in self.both])
        ends: dict[str, Any] = {}
        for _, facts in shares:
            ends |= {name: {"position": one["position"]} for name, one in facts["partitions"].items()}
        parts = [PartState(arrays=dict(arrays), facts=dict(facts)) for arrays, facts in shares]
        return remembered_of(parts, PartState(facts={"partitions": ends}))

    def stop(self) -> None:
        for one in self.both:
            one.reader.stop()
        self._pool.shutdown()


@pytest.fixture
def began() -> int:
    return round(time.time() * 1000) - 3_600_000


@pytest.fixture
def group() -> Iterator[Callable[..., Workers]]:
    made = list[Workers]()

    def make(
        clicks: Sequence[Click],
        saved: PartState | None = None,
        at: int = 0,
        roles: Sequence[Role] = READING_ALL,
    ) -> Workers:
        made.append(Workers(clicks, saved, at, roles))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_a_label_that_one_worker_uses_is_counted_once(
    began: int, wait_for: WaitFor, group: Callable[..., Workers]
) -> None:
    # Of the chief's record, of the other's, that one's again, and of nobody's.
    keys = [(1, 10), (2, 20), (2, 30), (9, 40)]
    enough = [Click(-1, began + WITHIN + EARLY + 1_000 * at) for at in range(60)]
    both = group([*(Click(key, began + at) for key, at in keys), *enough])
    for start, gets in ((0, [1.0]), (1, [0.0])):
        records = [one.records(began + 40_000 * start, start=start) for one in both.both]
        wait_for(lambda records=records: all(map(both.admits, both.both, records)))  # type: ignore[misc]
        assert [one.learn(each) for one, each in zip(both.both, records, strict=True)] == [gets, gets]
        saved = both.saved()
        labels = saved.facts["labels"]
        assert sum(labels["expired"].values()) + labels["waiting"] == labels["partitions"]["later:0"]["position"]
        if not start:
            marks = [saved.arrays[f"labels/later:0/{name}"].tolist() for name in ("offsets", "flags")]
            assert marks == [[0, 1, 2], [USED | FITTED, USED | FITTED, FITTED]]
    wait_for(lambda: both.met().account().get("used"))
    account = both.account()
    assert (account["used"], account["duplicate"], account.get("late", 0)) == (2, 1, 0)


def test_what_a_worker_has_learnt_is_counted_by_any_that_resume(
    began: int, wait_for: WaitFor, group: Callable[..., Workers]
) -> None:
    clicks = [Click(2, began + 10), Click(-1, began + WITHIN + EARLY + 10)]
    both = group(clicks)
    records = [one.records(began) for one in both.both]
    wait_for(lambda: all(map(both.admits, both.both, records)))
    assert [one.learn(each) for one, each in zip(both.both, records, strict=True)] == [[0.0], [1.0]]
    saved = both.saved()
    again = group(clicks, saved, 1)
    assert again.saved().facts["labels"] == saved.facts["labels"], "nothing has changed while labels are read again"
    again.add(Click(-1, began + 2 * WITHIN + 60_000))
    records = [one.records(began + 60_000, start=1) for one in again.both]
    wait_for(lambda: all(map(again.admits, again.both, records)))
    for one, each in zip(again.both, records, strict=True):
        one.learn(each)
    wait_for(lambda: again.met().account().get("used"))
    assert again.account()["used"] == 1


def test_a_label_is_late_at_all_workers_where_the_chief_has_not_waited_for_it(
    began: int, wait_for: WaitFor, group: Callable[..., Workers]
) -> None:
    both = group([Click(-1, began + at) for at in range(0, 600_000, 5_000)])
    mine = both.chief.records(began + 600_000)
    wait_for(lambda: both.admits(both.chief, mine))
    # Too late for the chief's record, so it is too late for the other's, which has not asked for anything yet.
    both.add(Click(1, began + 600_010), Click(2, began + 600_020))
    others = both.other.records(began + 600_000)
    wait_for(lambda: both.admits(both.other, others))
    both.other.reader.want(began + 10**9)
    wait_for(lambda: both.met().other.reader.clocks.positions()[CLICKS] == len(both.other.log.clicks))
    assert (both.chief.learn(mine), both.other.learn(others)) == ([0.0], [0.0])


def test_no_worker_reads_further_than_the_chief_has_said(began: int, group: Callable[..., Workers]) -> None:
    both = group([Click(-1, began + at) for at in range(250)])
    both.other.reader.want(began + 10_000)
    time.sleep(0.2)
    assert both.other.reader.clocks.positions()[CLICKS] == 0
    both.other.reader.follow({CLICKS: 130}, {})
    time.sleep(0.2)
    assert both.other.reader.clocks.positions()[CLICKS] == 130, "in the middle of what it has fetched"
    both.other.reader.follow({CLICKS: 250}, {})
    ends = time.monotonic() + 10
    while both.other.reader.clocks.positions()[CLICKS] < 250:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_label_from_the_future_is_refused_by_all_though_they_read_it_later(
    began: int, wait_for: WaitFor, group: Callable[..., Workers]
) -> None:
    soon = round(time.time() * 1000) + EARLY + 60_000
    both = group([Click(2, soon), Click(-1, began + WITHIN + EARLY)])
    both.chief.reader.want(began + WITHIN)
    wait_for(lambda: both.chief.reader.refused == 1)
    others = both.other.records(began)
    wait_for(lambda: both.admits(both.other, others))
    assert both.other.reader.clocks.at()[CLICKS] == both.chief.reader.clocks.at()[CLICKS] == began + WITHIN
    assert both.account() == {"refused": 1}


def test_which_records_of_another_worker_are_too_old_lies_with_the_chief(
    began: int, group: Callable[..., Workers]
) -> None:
    both = group([Click(-1, began)])
    both.other.jumps.add({both.other.partition: (7, began)})
    both.met()
    assert both.chief.jumps.of(both.other.partition)[0].tolist() == [7]


def test_workers_that_read_their_own_labels_alone_have_one_account(
    began: int, wait_for: WaitFor, group: Callable[..., Workers]
) -> None:
    # Each of the two partitions has a label of its record, and one of the other's, which nobody finds there.
    clicks = [Click(1, began + 10), Click(2, began + 20), Click(-1, began + WITHIN + EARLY + 10)]
    both = group(clicks, roles=READING_THEIR_OWN)
    records = [one.records(began) for one in both.both]
    wait_for(lambda: all(map(both.admits, both.both, records)))
    assert [one.learn(each) for one, each in zip(both.both, records, strict=True)] == [[1.0], [1.0]]
    saved = both.saved()
    assert saved.arrays.keys() == {f"labels/{at}/{name}" for at in LABELS for name in ("offsets", "flags")}
    assert {name: one["position"] for name, one in saved.facts["labels"]["partitions"].items()} == {
        "later:0": 3,
        "later:1": 3,
    }
    assert saved.facts["labels"]["waiting"] == 6
    again = group(clicks, saved, 1, READING_THEIR_OWN)
    assert again.saved().facts["labels"] == saved.facts["labels"], "nothing has changed while labels are read again"
    again.add(Click(-1, began + 2 * WITHIN + 60_000))
    records = [one.records(began + 60_000, start=1) for one in again.both]
    wait_for(lambda: all(map(again.admits, again.both, records)))
    for one, each in zip(again.both, records, strict=True):
        one.learn(each)
    wait_for(lambda: again.met().account().get("used"))
    assert again.account() == {"used": 2, "unused": 4}
    third = group([*clicks, Click(-1, began + 2 * WITHIN + 60_000)], again.saved(), 2, READING_THEIR_OWN)
    assert third.account() == {"used": 2, "unused": 4}, "what was counted before counts at the chief"


def test_a_partition_of_records_without_one_of_labels_ends_the_run(began: int, group: Callable[..., Workers]) -> None:
    both = group([Click(-1, began)], roles=READING_THEIR_OWN)
    with pytest.raises(MillraceError, match="no topic of labels has a partition 2"):
        both.other.shaper.open(2, {Partition("clicks", 2): 0})
