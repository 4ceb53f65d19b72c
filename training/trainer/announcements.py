"""What the trainer announces: one event for each thing that happened, as a sentence with the facts beside it."""

import logging
from collections.abc import Iterable

from millrace.consumers.records import Partition
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.commands import Pause, Resume, Rewind
from millrace.training.model.hyperparameters import Change
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity

log = logging.getLogger(__name__)


def joined(report: ReportEvent, partition: Partition, offset: int) -> None:
    """Announce a partition that is learnt from this offset on."""
    text = f"Partition {partition} has joined at offset {offset:,}."
    report(EventKind.PARTITION_ADDED, text, partition=str(partition), offset=offset)


def recreated(report: ReportEvent, partition: Partition, offset: int) -> None:
    """Announce, and log, that the topic of a partition was deleted and created again."""
    text = f"{partition}: its topic was deleted and created again, so the partition restarts at offset {offset}"
    log.warning(text)
    report(EventKind.TOPIC_RECREATED, f"{text}.", Severity.WARNING, partition=str(partition), offset=offset)


def paused(report: ReportEvent, command: Pause) -> None:
    report(EventKind.PAUSED, f"Paused: {command.reason}.", reason=command.reason)


def resumed(report: ReportEvent, command: Resume) -> None:
    without = "; what waits for labels is learnt without them" if command.assume_absent else ""
    report(EventKind.RESUMED, f"Resumed{f': {command.reason}' if command.reason else ''}{without}.")


def rewound(report: ReportEvent, command: Rewind, manifest: Manifest) -> None:
    """Announce a rewind: from whom, why, to which checkpoint, and what it skips. `manifest` is the new checkpoint."""
    by = f", asked for by {command.by}," if command.by else ""
    why = f": {command.note}" if command.note else ""
    ranges = [f"{skip.partition}:{skip.start}-{skip.end - 1}" for skip in command.skips]
    skipped = f" It skips {', '.join(ranges)}." if ranges else ""
    report(
        EventKind.REWOUND,
        f"Rewound to checkpoint {command.to}{by} as checkpoint {manifest.number}{why}.{skipped}",
        number=manifest.number,
        to=command.to,
        by=command.by,
        reason=command.note,
        skip=ranges or None,
    )


def published(report: ReportEvent, manifest: Manifest) -> None:
    """Announce a checkpoint that is durable."""
    asked = f", asked for by {manifest.ordered_by}" if manifest.ordered_by else ""
    note = f": {manifest.note}" if manifest.note else ""
    report(
        EventKind.CHECKPOINT,
        f"Checkpoint {manifest.number} is durable{asked}{note}.",
        number=manifest.number,
        step=manifest.step,
        reason=manifest.reason,
        by=manifest.ordered_by,
        note=manifest.note,
    )


def save_failed(report: ReportEvent, error: Exception) -> None:
    """Announce a checkpoint that could not be written."""
    report(EventKind.SAVE_FAILED, f"A save failed: {error}", Severity.ERROR)


def changed(report: ReportEvent, changes: Iterable[Change], number: int) -> None:
    """Announce each hyperparameter that differs from the restored checkpoint `number`."""
    for change in changes:
        report(EventKind.HYPERPARAMETERS, f"{change}.", name=change.name, number=number)
