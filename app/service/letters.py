"""Posting what the trainer refuses to the dead letters, awaiting and stopping them. On trainer and save threads."""

import logging

from millrace.consumers.dead_letters.letter import Absence, DeadLetter, DeadLetters
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.training.checkpoints.manifest import SaveRequest
from millrace.training.errors import CheckpointError

log = logging.getLogger(__name__)
_STOP_S = 5.0
_ACKNOWLEDGE_S = 30.0


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


def await_letters(dead_letters: DeadLetters, topic: str | None, _request: SaveRequest) -> None:
    """Wait until the dead letters so far are acknowledged, so that no manifest is ahead of them."""
    if not dead_letters.wait_acknowledged(dead_letters.sequence(), _ACKNOWLEDGE_S):
        raise CheckpointError(
            f"records.dead_letters.topic: {topic} has not acknowledged its letters within {_ACKNOWLEDGE_S:g} s, so the "
            "checkpoint waits for the next save; is the topic there?"
        )


def stop_dead_letters(dead_letters: DeadLetters) -> None:
    """Stop sending; what is not acknowledged within a few seconds is left for the next start."""
    if abandoned := dead_letters.stop(_STOP_S):
        log.warning("dead letters that were not acknowledged: %d; a restart sends them again", abandoned)
