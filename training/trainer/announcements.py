"""What the trainer tells of what it did: one sentence an event, with the facts beside it. Pure, but for the telling."""

import logging
from collections.abc import Iterable

from consumers.records import Partition
from training.checkpoints.manifest import Manifest
from training.commands import Pause, Resume, Rewind
from training.model.hyperparameters import Change
from training.telemetry.events import EventKind, Severity, Tell

log = logging.getLogger(__name__)


def joined(tell: Tell, partition: Partition, offset: int) -> None:
    """A partition is learnt from now on."""
    text = f"Partition {partition} has joined at offset {offset:,}."
    tell(EventKind.PARTITION_ADDED, text, partition=str(partition), offset=offset)


def recreated(tell: Tell, partition: Partition, offset: int) -> None:
    """A topic of the same name is another one."""
    text = f"{partition} is of a topic that was created again, and begins anew at {offset}"
    log.warning(text)
    tell(EventKind.TOPIC_RECREATED, f"{text}.", Severity.WARNING, partition=str(partition), offset=offset)


def paused(tell: Tell, command: Pause) -> None:
    """Nothing is learnt until it is resumed."""
    tell(EventKind.PAUSED, f"Paused: {command.reason}.", reason=command.reason)


def resumed(tell: Tell, command: Resume) -> None:
    """It is learnt again."""
    tell(EventKind.RESUMED, f"Resumed{f': {command.reason}' if command.reason else ''}.")


def rewound(tell: Tell, command: Rewind, manifest: Manifest) -> None:
    """Another history was ordered, and is gone on with."""
    by, why = f" by {command.by}" if command.by else "", f": {command.note}" if command.note else ""
    ranges = [f"{skip.partition}:{skip.start}-{skip.end - 1}" for skip in command.skips]
    over = f" It passes over {', '.join(ranges)}." if ranges else ""
    tell(
        EventKind.REWOUND,
        f"Rewound to checkpoint {command.to}, ordered{by} as checkpoint {manifest.number}{why}.{over}",
        number=manifest.number,
        to=command.to,
        by=command.by,
        reason=command.note,
        skip=ranges or None,
    )


def published(tell: Tell, manifest: Manifest) -> None:
    """A checkpoint is durable."""
    asked = f", asked for by {manifest.ordered_by}" if manifest.ordered_by else ""
    note = f": {manifest.note}" if manifest.note else ""
    tell(
        EventKind.CHECKPOINT,
        f"Checkpoint {manifest.number} is durable{asked}{note}.",
        number=manifest.number,
        step=manifest.step,
        reason=manifest.reason,
        by=manifest.ordered_by,
        note=manifest.note,
    )


def save_failed(tell: Tell, error: Exception) -> None:
    """A checkpoint did not become durable."""
    tell(EventKind.SAVE_FAILED, f"A save failed: {error}", Severity.ERROR)


def changed(tell: Tell, changes: Iterable[Change], number: int) -> None:
    """Hyperparameters differ from those of the checkpoint that was restored."""
    for change in changes:
        tell(EventKind.HYPERPARAMETERS, f"{change}.", name=change.name, number=number)
