"""A start without checkpoints under a name that has learnt before: the group's committed offsets show it.

A name commits only what a durable checkpoint holds. Where there are commits and no checkpoint, the folder was lost, or
another volume is mounted in its place. Asked once, at a start, and by `validate`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.app.settings import Settings
from millrace.consumers.errors import DataLossError
from millrace.consumers.kafka.positions import Committed, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.consumers.suggested_command import suggested_command


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHistory:
    """What this name has learnt before, as far as Kafka shows it."""

    where: str
    """The folder that holds no checkpoint."""
    group: str
    partitions: int
    """How many partitions have committed offsets that are not the start's."""
    again: int
    """Offsets that were learnt before, and are learnt again from the start on."""

    def __str__(self) -> str:
        again = f": {self.again:,} offsets are learnt once more" if self.again else ""
        return (
            f"{self.where} holds no checkpoint, yet the group {self.group} has committed offsets of {self.partitions} "
            f"partitions, so this name has learnt before. The model begins with new weights{again}"
        )


def lost_history(source: KafkaSource, settings: Settings, start: Mapping[Partition, int]) -> LostHistory | None:
    """Return what shows that this name has learnt before; None where nothing does.

    `start` are the offsets to begin at. Raises DataLossError where `checkpoints.on_missing` is `fail`.
    """
    kafka = settings.kafka
    if isinstance(kafka.start_position, Committed):
        return None  # commits are what such a start begins at, whoever made them
    # Of what has learnt nothing, the start itself is committed; but the end of a topic moves on.
    at_end = isinstance(kafka.start_position, Latest)
    learnt = {p: offset for p, offset in source.committed().items() if at_end or offset != start.get(p)}
    if not learnt:
        return None
    lost = LostHistory(
        where=str(settings.checkpoints.path / settings.name),
        group=kafka.group,
        partitions=len(learnt),
        again=sum(max(0, offset - start.get(partition, offset)) for partition, offset in learnt.items()),
    )
    if settings.checkpoints.on_missing == "fail":
        raise DataLossError(
            f"checkpoints.on_missing: fail: {lost.where} holds no checkpoint, yet the group {lost.group} has committed "
            "offsets, so this name has learnt before: mount its volume or bring the folder back; or begin again by "
            f"`{suggested_command('run', '--start-over')}`, once, or with checkpoints.on_missing: start"
        )
    return lost
