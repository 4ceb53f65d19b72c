"""The flood gate: what is a flood, what is none, and what happens behind one."""

from collections.abc import Sequence

import pytest

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.gates.flood import FEWEST_BAD, SHORT_S, FloodGate, Judged, PauseAboveSettings, judged
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import DecodePool, Refused
from millrace.training.ledger.interventions import Skip
from tests.pipelines.stream.test_decode import chunk_of

P0, P1 = Partition("clicks", 0), Partition("clicks", 1)
SCHEMA = Schema(features=(Field(name="id", source="id", dtype="int64"),))
GOOD, BAD = b'{"id": 1}', b"{"
OVER_S = 60.0


class Stream:
    """Chunks of one partition or more, one after another, by a clock that stands still in between."""

    def __init__(self, share: float = 0.05) -> None:
        self.now = 1000.0
        self.gate = FloodGate(PauseAboveSettings(share=share, over=f"{OVER_S}s"), lambda: self.now)
        self._ends = {P0: 0, P1: 0}
        self.gate.begin(self._ends)

    def next(self, records: int, bad: int, partition: Partition = P0) -> Judged:
        start = self._ends[partition]
        self._ends[partition] += records
        return Judged(partition=partition, start=start, end=start + records, records=records, bad=bad, most="malformed")

    def admits(self, records: int, bad: int, partition: Partition = P0) -> bool:
        return self.gate.passes(self.next(records, bad, partition))

    def run(self, seconds: int, records: int, bad: int) -> bool:
        """Take as many a second; return whether all went on."""
        for _ in range(seconds):
            self.now += 1
            if not self.admits(records, bad):
                return False
        return True


def test_a_stream_of_bad_records_is_held_within_seconds_at_any_rate_and_chunk() -> None:
    for records in (20, 100, 5000):
        stream = Stream()
        assert stream.run(600, 100, 0)
        began = stream.now
        assert not stream.run(100, records, records)
        assert stream.now - began <= SHORT_S + 1
    assert stream.gate.why == "5,000 of the 5,300 records decoded within 4 s cannot be learnt, most as malformed"


def test_the_very_first_chunk_is_held_where_nothing_of_it_decodes() -> None:
    stream = Stream()
    assert not stream.admits(FEWEST_BAD, FEWEST_BAD)
    assert stream.gate.positions() == {P0: 0, P1: 0}


@pytest.mark.parametrize("quiet_s", [0, 600])
def test_a_handful_of_bad_records_is_no_flood_however_quiet_it_was_before(quiet_s: int) -> None:
    stream = Stream()
    assert stream.run(120, 10, 0)
    stream.now += quiet_s
    assert stream.admits(FEWEST_BAD - 1, FEWEST_BAD - 1)
    assert stream.gate.why is None


def test_a_share_above_the_bound_is_held_once_it_has_lasted_and_one_below_never() -> None:
    stream = Stream()
    assert stream.run(int(OVER_S), 100, 10)
    assert not stream.run(2, 100, 10)
    assert stream.gate.why is not None
    assert "within 60 s" in stream.gate.why
    assert Stream().run(1000, 100, 5)


def test_a_bound_above_one_half_is_kept_to_in_the_short_window_too() -> None:
    assert Stream(share=0.8).run(1000, 100, 75)
    assert not Stream(share=0.8).run(10, 100, 90)


def test_bad_records_that_are_over_hold_no_good_chunk_back() -> None:
    stream = Stream()
    assert stream.run(int(OVER_S), 100, 10)
    assert stream.run(600, 100, 0)
    assert stream.gate.why is None


def test_while_it_holds_no_chunk_of_any_partition_goes_on() -> None:
    stream = Stream()
    held = stream.next(500, 500)
    assert not stream.gate.passes(held)
    assert not stream.admits(100, 0, P1)
    stream.now += 1e6
    assert not stream.gate.passes(held)


def test_what_is_let_pass_is_not_held_again_and_what_comes_behind_it_is() -> None:
    stream = Stream()
    held = stream.next(500, 500)
    assert not stream.gate.passes(held)
    assert stream.gate.let_pass({P0: 1500, P1: 200})
    assert stream.gate.passes(held)
    assert stream.run(1, 1000, 1000)
    assert stream.admits(200, 200, P1)
    assert stream.gate.positions() == {P0: 1500, P1: 200}
    assert not stream.admits(500, 500)


def test_the_chunk_that_is_held_passes_though_nobody_knows_where_its_partition_ends() -> None:
    stream = Stream()
    held = stream.next(500, 500)
    assert not stream.gate.passes(held)
    assert stream.gate.let_pass({})
    assert stream.gate.passes(held)
    assert not stream.admits(500, 500)


def test_to_let_pass_what_is_not_held_changes_nothing() -> None:
    stream = Stream()
    assert not stream.gate.let_pass({P0: 10_000})
    assert not stream.admits(500, 500)


def test_a_new_stream_holds_nothing_until_it_meets_the_flood_again() -> None:
    stream = Stream()
    held = stream.next(500, 500)
    assert not stream.gate.passes(held)
    stream.gate.begin({P0: 0, P1: 0})
    assert stream.gate.why is None
    assert stream.admits(100, 0, P1)
    assert not stream.gate.passes(held)


def test_skipped_records_count_neither_as_bad_nor_as_good() -> None:
    pool = DecodePool(make_decoder("json", SCHEMA), threads=1)
    pool.submit(chunk_of([BAD, BAD, GOOD, b"", GOOD]))
    decoded = pool.next(10.0)
    pool.close()
    cut = [Skip(order="rewind-1", partition=decoded.partition, start=0, end=3, reason="a bad batch")]
    whole, rest = judged(decoded), judged(decoded, cut)
    assert (whole.records, whole.bad, whole.most) == (5, 3, "malformed")
    assert (rest.records, rest.bad, rest.most) == (2, 1, Reason.EMPTY.value)


def test_a_pool_keeps_a_chunk_that_is_not_admitted_and_reports_none_of_its_records() -> None:
    open_now, told = [False], list[int]()

    def tell(_: Chunk, refused: Sequence[Refused]) -> int:
        told.extend(one.offset for one in refused)
        return len(refused)

    pool = DecodePool(
        make_decoder("json", SCHEMA),
        threads=1,
        on_refused=tell,
        admits=lambda _: open_now[0],
    )
    pool.submit(chunk_of([BAD, GOOD, BAD]))
    with pytest.raises(TimeoutError, match="not admitted"):
        pool.next(1.0)
    with pytest.raises(TimeoutError, match="not admitted"):
        pool.next(0.0)
    assert (pool.in_flight, told) == (1, [])
    open_now[0] = True
    assert len(pool.next(10.0)) == 1
    assert told == [0, 2]
    pool.close()
