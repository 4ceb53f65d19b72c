"""Posting what the trainer refuses to the dead letters, and stopping them. Runs on the trainer's thread."""

import logging

from consumers.dead_letters.letter import Absence, DeadLetter, DeadLetters
from consumers.reasons import Reason
from consumers.records import Partition

log = logging.getLogger(__name__)
_STOP_S = 5.0


def post_refused(
    dead_letters: DeadLetters, name: str, partition: Partition, offset: int, reason: Reason, *, framed: bool = False
) -> None:
    """Post a record that decodes but cannot be learnt. `framed`: values begin with a schema's number.

    The trainer no longer has its bytes, so it posts the origin, and the dead letters read the record there again.
    """
    letter = DeadLetter(
        partition=partition,
        offset=offset,
        timestamp_ms=0,
        key=None,
        value=None,
        headers=(),
        reason=reason,
        field=None,
        framed=framed,
        model=name,
        absent=Absence.UNREAD,
    )
    # It never waits: while too many letters wait for room, `blocked` keeps the trainer from the next block instead.
    dead_letters.put_at_once(letter)


def stop_dead_letters(dead_letters: DeadLetters) -> None:
    """Stop sending; what is not acknowledged within a few seconds is left for the next start."""
    if abandoned := dead_letters.stop(_STOP_S):
        log.warning("dead letters that were not acknowledged: %d; a restart sends them again", abandoned)
