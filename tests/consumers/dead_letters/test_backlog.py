"""Dead letters wait in order and within their bound, and none is skipped."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.consumers.dead_letters.backlog import Backlog, BacklogOptions
from millrace.consumers.dead_letters.letter import CountedOnly, DeadLetter
from millrace.consumers.errors import DeadLettersStopped
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition


def letter(offset: int = 0, *, value: bytes | None = b"{", reason: Reason = Reason.MALFORMED) -> DeadLetter:
    return DeadLetter(
        partition=Partition("clicks", 3),
        offset=offset,
        timestamp_ms=99,
        key=b"k",
        value=value,
        headers=(("trace", b"1"),),
        reason=reason,
        field=None,
        model="clicks-model",
    )


def never() -> bool:
    return False


def test_a_letter_carries_its_origin_and_reason_before_its_own_headers() -> None:
    assert letter(7).all_headers() == [
        ("millrace.topic", b"clicks"),
        ("millrace.partition", b"3"),
        ("millrace.offset", b"7"),
        ("millrace.timestamp", b"99"),
        ("millrace.reason", b"malformed"),
        ("millrace.name", b"clicks-model"),
        ("trace", b"1"),
    ]


def test_letters_leave_in_order_and_only_when_settled() -> None:
    backlog = Backlog(BacklogOptions())
    for offset in range(5):
        backlog.put([letter(offset)], never)
    assert [waiting.offset for waiting in backlog.oldest(3, 10**6)] == [0, 1, 2]
    backlog.acknowledge(2)
    assert [waiting.offset for waiting in backlog.oldest(9, 10**6)] == [2, 3, 4]
    assert len(backlog.oldest(9, 1)) == 1
    statistics = backlog.statistics()
    assert (statistics.put, statistics.acknowledged, statistics.waiting) == (5, 2, 3)
    assert statistics.by_reason == {Reason.MALFORMED: 5}
    assert not backlog.full


def test_a_full_backlog_makes_put_wait_until_a_letter_is_settled() -> None:
    backlog = Backlog(BacklogOptions(capacity_bytes=letter().nbytes))
    backlog.put([letter(0)], never)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backlog.put, [letter(1)], never)
        assert backlog.sequence() == 1
        backlog.acknowledge(1)
        assert waiting.result(20) == 1
    assert [left.offset for left in backlog.oldest(9, 10**6)] == [1]
    assert backlog.statistics().peak_bytes <= letter().nbytes


def test_of_several_letters_those_are_accepted_that_there_is_room_for() -> None:
    backlog = Backlog(BacklogOptions(capacity_bytes=2 * letter().nbytes))
    given = [letter(offset) for offset in range(5)]
    assert backlog.put(given, never) == 2
    assert backlog.put(given[2:], lambda: True) == 0
    backlog.acknowledge(1)
    assert backlog.put(given[2:], never) == 1
    assert [left.offset for left in backlog.oldest(9, 10**6)] == [1, 2]
    assert backlog.put([], never) == 0


def test_a_letter_larger_than_the_bound_is_accepted_alone() -> None:
    backlog = Backlog(BacklogOptions(capacity_bytes=10))
    backlog.put([letter(value=b"x" * 1000)], never)
    assert backlog.put([letter()], lambda: True) == 0


def test_close_releases_a_put_that_waits_for_room_without_accepting_the_letter() -> None:
    backlog = Backlog(BacklogOptions(capacity_bytes=1))
    backlog.put([letter()], never)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backlog.put, [letter(1)], never)
        assert backlog.close() == 1
        with pytest.raises(DeadLettersStopped):
            waiting.result(20)
    assert backlog.sequence() == 1


def test_put_at_once_accepts_a_letter_in_its_turn_when_there_is_no_room() -> None:
    backlog = Backlog(BacklogOptions(capacity_bytes=letter().nbytes))
    backlog.put([letter(0)], never)
    for offset in (1, 2):
        backlog.put_at_once(letter(offset))
    assert backlog.full
    assert [waiting.offset for waiting in backlog.oldest(9, 10**6)] == [0, 1, 2]
    backlog.acknowledge(2)
    assert backlog.put([letter(3)], lambda: True) == 0
    backlog.close()
    with pytest.raises(DeadLettersStopped):
        backlog.put_at_once(letter(3))
    assert backlog.sequence() == 3


def test_waiting_for_an_acknowledgement_ends_when_it_comes_or_time_is_up() -> None:
    backlog = Backlog(BacklogOptions())
    backlog.put([letter()], never)
    assert not backlog.wait_acknowledged(1, 0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backlog.wait_acknowledged, 1, 20)
        backlog.acknowledge(1)
        assert waiting.result(20)
    assert backlog.wait_acknowledged(0, 0)


def test_without_a_topic_letters_are_counted_by_reason_and_nothing_waits() -> None:
    sink = CountedOnly()
    for reason in (Reason.EMPTY, Reason.EMPTY, Reason.NOT_FINITE):
        sink.put([letter(reason=reason)])
    assert sink.sequence() == 3
    assert sink.wait_acknowledged(3, 0)
    assert sink.statistics().by_reason == {Reason.EMPTY: 2, Reason.NOT_FINITE: 1}
    assert sink.stop(0) == 0
