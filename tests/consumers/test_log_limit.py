"""The lines of a library are limited, and the log reports how many are missing."""

import logging

import pytest

from millrace.consumers.errors import UnreachableError
from millrace.consumers.kafka.source import KafkaOptions, KafkaSource
from millrace.consumers.log_limit import LogLimit, RepeatLimit, limit_loggers, limit_repeats


def test_lines_past_the_limit_are_held_back_and_counted_in_the_next_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    logger = logging.getLogger("chatty.one")
    limit = LogLimit(2, clock=lambda: now)
    logger.addFilter(limit)
    try:
        for number in range(5):
            logger.warning("line %d", number)
        assert caplog.messages == ["line 0", "line 1"]
        now = 60.0
        logger.warning("line %s", "5 with %d inside")
    finally:
        logger.removeFilter(limit)
    assert caplog.messages[2:] == ["line 5 with %d inside (and 3 more lines like it were held back)"]


def test_every_logger_below_a_name_gets_its_own_limit_and_only_one() -> None:
    one, two = logging.getLogger("chatty.tree.one"), logging.getLogger("chatty.tree.two")
    other = logging.getLogger("chatty.treeless")
    for _ in range(2):
        limit_repeats("chatty.tree")
        limit_loggers("chatty.tree", 5)
    assert [len(logger.filters) for logger in (one, two, other)] == [2, 2, 0]
    assert one.filters[0] is not two.filters[0]


def test_a_line_of_the_same_kind_is_repeated_once_in_ten_minutes_with_the_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    logger = logging.getLogger("chatty.kinds")
    limit = RepeatLimit(clock=lambda: now)
    logger.addFilter(limit)
    try:
        for second in range(601):
            now = float(second)
            logger.error("unable to connect to %s: %s", f"host-{second}", OSError("refused"))
        logger.error("unable to connect to %s: %s", "host-1", ValueError("another error"))
        logger.error("unable to update the metadata")
    finally:
        logger.removeFilter(limit)
    assert caplog.messages == [
        "unable to connect to host-0: refused",
        "unable to connect to host-600: refused (and 599 more lines like it were held back)",
        "unable to connect to host-1: another error",
        "unable to update the metadata",
    ]


def test_at_debug_level_every_line_is_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("chatty.debug")
    limit = RepeatLimit(hidden=("of no interest",))
    logger.addFilter(limit)
    try:
        for _ in range(3):
            logger.error("of no interest")
    finally:
        logger.removeFilter(limit)
    assert len(caplog.messages) == 3


def test_what_a_new_broker_answers_at_first_is_left_to_the_commit_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    name = "aiokafka.consumer.group_coordinator"
    logger = logging.getLogger(name)
    before = list(logger.filters)
    logger.filters[:] = []
    try:
        limit_repeats(name)
        logger.error("Group Coordinator Request failed: %s", "[Error 15] CoordinatorNotAvailableError")
        logger.error("Unexpected error in join group")
    finally:
        logger.filters[:] = before
    assert caplog.messages == ["Unexpected error in join group"]


def test_a_wrong_port_is_one_line_of_the_client_library(caplog: pytest.LogCaptureFixture) -> None:
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("aiokafka")]
    before = [list(logger.filters) for logger in loggers]
    for logger in loggers:
        logger.filters[:] = []
    try:
        source = KafkaSource(KafkaOptions(bootstrap_servers=("127.0.0.1:1",), topics=("t",), group_id="g"))
        with pytest.raises(UnreachableError):
            source.start(1.5)
    finally:
        for logger, filters in zip(loggers, before, strict=True):
            logger.filters[:] = filters
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("aiokafka")]
    assert line.startswith('Unable connect to "127.0.0.1:1": [Errno 111]')
