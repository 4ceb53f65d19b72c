"""The numbers of a step that the config leaves to `auto`: settled once, when a lineage of checkpoints begins.

By the pace at which records come then (`app/service/pace.py`); from then on every checkpoint records them among its
hyperparameters, and each later start and each tool takes them from there, whatever the pace is by then. A number in the
config always wins. Changes nothing on disk. Imports no TensorFlow.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from millrace.app.service.kept_sample import read_between
from millrace.app.service.pace import pace_for, records_per_s
from millrace.app.settings import Settings
from millrace.app.settings.sections.training import StepNumbers
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.positions import Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.store import CheckpointStore

log = logging.getLogger(__name__)

_PART = "hyperparameters"
_READ_S = 5.0
_UNKNOWN = StepNumbers(batch_size=32)
"""For an empty topic: with 1024 rows next to nothing of a slow stream would be learnt, and fewer rows, or more passes,
would not keep up with a fast one."""


def settled(settings: Settings, source: KafkaSource, *, start_over: bool = False) -> Settings:
    """Return the settings of a start with all numbers settled: by the newest checkpoint, or else by a look at Kafka."""
    if not settings.training.left_to_auto:
        return settings
    return _told(settings, *numbers_for(settings, source, start_over=start_over))


def settled_in_group(settings: Settings) -> Settings:
    """Return the settings of a worker with all numbers settled: those of any worker, whenever each of them starts."""
    if not settings.training.left_to_auto:
        return settings
    return _told(settings, StepNumbers(), "the workers of a group have to take the same")


def as_recorded(settings: Settings, number: int | None = None) -> Settings:
    """Return the settings with the numbers of a checkpoint, the newest by default, for what goes on from there.

    Without a checkpoint the numbers are those of a start that has nothing to look at.
    """
    if not settings.training.left_to_auto:
        return settings
    return _told(settings, *(recorded(settings, number) or (StepNumbers(), "there is no checkpoint that has another")))


def recorded(settings: Settings, number: int | None = None) -> tuple[StepNumbers, str] | None:
    """Return the numbers with which a checkpoint was learnt, and which it is; None if there is none to be read."""
    store = CheckpointStore(Folder(settings.checkpoints.path / settings.name))
    for one in reversed(store.folder.numbers()) if number is None else [number]:
        try:
            part = store.load(one, only=[_PART]).get(_PART)
        except MillraceError:  # a start falls back to its parent, and says what is wrong
            continue
        return numbers_in({} if part is None else part.facts), f"as in checkpoint {one}"
    return None


def numbers_in(facts: Mapping[str, Any]) -> StepNumbers:
    """Return the numbers among the hyperparameters of a checkpoint.

    Earlier versions recorded none, or not all, and had the same numbers where nothing else was set.
    """
    known = {name: facts.get(f"training.{name}", value) for name, value in asdict(StepNumbers()).items()}
    return StepNumbers(**known)


def numbers_for(settings: Settings, source: KafkaSource, *, start_over: bool = False) -> tuple[StepNumbers, str]:
    """Return the numbers for a start that learns from this source, and why these."""
    training = settings.training
    if not start_over and (found := recorded(settings)) is not None:
        return found
    if "batch_size" not in training.left_to_auto:
        return StepNumbers(), "the config has a batch size"
    if training.rows == "together":
        return StepNumbers(), "the loss compares the rows of a batch"
    first, end = source.resolve_start(Earliest()), source.resolve_start(Latest())
    held = sum(end.values()) - sum(first.values())
    if not held:
        return _UNKNOWN, "the topic holds no record yet that tells how fast they come"
    rate = records_per_s(source.resolve_start, _oldest_ms(source, first, end))
    slow = settings.windows.used or any(getattr(one, "image", None) for one in settings.records.features.values())
    given = None if "passes" in training.left_to_auto else training.numbers.passes
    pace = pace_for(held, rate, slow=slow, passes=given)
    memory = pace.memory if given is None else None
    return StepNumbers(batch_size=pace.batch_size, passes=pace.passes, memory=memory), pace.why


def _oldest_ms(source: KafkaSource, first: Mapping[Partition, int], end: Mapping[Partition, int]) -> int:
    """Return the time of the oldest record, by the first of each partition."""
    heads = {partition: offset for partition, offset in first.items() if offset < end[partition]}
    until = {partition: offset + 1 for partition, offset in heads.items()}
    chunks = read_between(source, 0, heads, until, wait_s=_READ_S, counted=False)
    return min((int(min(chunk.timestamps)) for chunk in chunks), default=0)


def with_numbers(settings: Settings, found: StepNumbers) -> Settings:
    """Return the settings with these numbers in place of each `auto`."""
    training, left = settings.training, settings.training.left_to_auto
    new: dict[str, Any] = {name: value for name, value in asdict(found).items() if name in left}
    numbers = replace(training.numbers, **new)
    drawn = numbers.memory if training.members is None else training.members.recent
    if "batch_size" in left and drawn is not None:
        numbers = replace(numbers, batch_size=min(numbers.batch_size, drawn))
    if "batch_size" in left and isinstance(training.replicas, int):
        numbers = replace(numbers, batch_size=-(-numbers.batch_size // training.replicas) * training.replicas)
    # It may have been chosen beside other settings than the config has now.
    alone = settings.scale.workers == 1 and training.members is None and training.rows == "apart"
    if "memory" in left and not (alone and numbers.passes > 1 and numbers.batch_size <= (numbers.memory or 0)):
        numbers = replace(numbers, memory=None)
    return settings.model_copy(update={"training": training.model_copy(update=asdict(numbers))})


def sentence(numbers: StepNumbers, why: str) -> str:
    """Say what the numbers are, and why."""
    passes = f", {numbers.passes} passes" if numbers.passes > 1 else ""
    memory = f", a memory of {numbers.memory:,} records" if numbers.memory else ""
    return f"training.batch_size: auto: {numbers.batch_size:,} rows a step{passes}{memory}: {why}"


def _told(settings: Settings, found: StepNumbers, why: str) -> Settings:
    after = with_numbers(settings, found)
    if "batch_size" in settings.training.left_to_auto:
        log.info("%s", sentence(after.training.numbers, why))
    return after
