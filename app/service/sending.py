"""What those who tell servers of others how the service does have in common; `senders.py` lists them. Runs anywhere."""

import logging
import time
from typing import NamedTuple

_LOG_EVERY_S = 60.0
_LONGEST = 400


class Readiness(NamedTuple):
    """What a start would do, for `millrace validate`."""

    what: str
    """What goes where, in words."""
    warning: str | None = None
    """What is dangerous about it; None where nothing is."""


def in_a_line(why: str) -> str:
    """Return why a request failed as one line of bounded length: it may quote the server, which sends a whole page."""
    line = " ".join(why[: 10 * _LONGEST].split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


class Outage:
    """Says in the log that a server takes nothing when that begins, and when it is over; at most once a minute."""

    def __init__(self, log: logging.Logger, begins: str, over: str) -> None:
        """`begins` is the sentence but for the reason."""
        self._log, self._begins, self._over = log, begins, over
        self._told, self._told_at = False, float("-inf")

    def failed(self, why: str) -> None:
        """Take in that an attempt has failed."""
        now = time.monotonic()
        if not self._told and now - self._told_at >= _LOG_EVERY_S:
            self._told, self._told_at = True, now
            self._log.warning("%s: %s", self._begins, why)

    def succeeded(self) -> None:
        """Take in that an attempt has succeeded."""
        if self._told:
            self._log.info("%s", self._over)
        self._told = False
