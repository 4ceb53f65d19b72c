"""The lines of a library are limited, and the log reports how many are missing."""

import logging

import pytest

from consumers.log_limit import LogLimit, limit_loggers


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
    limit_loggers("chatty.tree", 5)
    limit_loggers("chatty.tree", 5)
    assert [len(logger.filters) for logger in (one, two, other)] == [1, 1, 0]
    assert one.filters[0] is not two.filters[0]
