"""The checks of Kafka: the broker answers, the topics are there, the dead letters have a place to go.

Connects as a start does, commits nothing and writes nothing.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace

from millrace.app.service.announcing import SETTING
from millrace.app.service.label_join import due_start
from millrace.app.service.lost_history import LostHistory, lost_history
from millrace.app.service.pace import pace_for, records_per_s
from millrace.app.service.step_numbers import numbers_for, sentence, with_numbers
from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.app.settings.spelling import flow
from millrace.app.tools.validate.check import CheckResult, fail, ok, skip, warn
from millrace.app.tools.validate.label_check import label_checks
from millrace.app.tools.validate.record_check import sample_checks
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.errors import ConfigError, DataLossError, MillraceError, TopicMissingError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.positions import Earliest, Latest, Start
from millrace.consumers.kafka.rights import refused_group
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.kafka.topic_writer import TopicWriter
from millrace.consumers.records import Partition
from millrace.pipelines.stream.record_sample import RecordSample

_CONNECT_S = 10.0
_STOP_S = 5.0
_FAR_TOO_LARGE = 8
"""Times as large as `init` would draft it."""
_LATER = ("topics", "commits", "dead letters", "records")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where the partitions begin and end now, and where a first start would begin."""

    first: Mapping[Partition, int]
    end: Mapping[Partition, int]
    start: Mapping[Partition, int] | MillraceError
    """What `kafka.start` comes to, or why it comes to nothing."""
    sample: RecordSample | None = None
    """Some records that decode."""
    settings: Settings | None = None
    """With the numbers of a step with which a start would begin; None where that is not known."""
    learnt_before: LostHistory | DataLossError | None = None
    """What shows that the name has learnt before, for a start without a checkpoint; an error if it would be refused."""


def kafka_checks(settings: Settings) -> Generator[CheckResult, None, Bounds | None]:
    """Check Kafka; return the bounds of the topics where they are known."""
    try:
        options = kafka_options(settings.kafka)
        source = KafkaSource(options, kafka_history(settings))
        source.start(_CONNECT_S)
    except TopicMissingError as error:
        yield ok("broker", f"{options.servers} answers")
        yield from _each_topic(options, error)
        yield _dead_letters(settings, options)
        yield from _announcements(settings, options)
        yield skip("records", "not all topics are there")
        return None
    except MillraceError as error:
        yield fail("broker", error)
        yield from (skip(name, "the broker does not let us in") for name in _LATER)
        return None
    try:
        return (yield from _look(settings, options, source))
    finally:
        source.stop(_STOP_S)


def _look(
    settings: Settings, options: KafkaOptions, source: KafkaSource
) -> Generator[CheckResult, None, Bounds | None]:
    yield ok("broker", f"{options.servers} answers; cluster {source.cluster_id()}")
    try:
        first, end = source.resolve_start(Earliest()), source.resolve_start(Latest())
        bounds = Bounds(first=first, end=end, start=_start(source, due_start(settings)))
    except MillraceError as error:
        yield fail("topics", error)
        return None
    for topic in options.topics:
        partitions = [partition for partition in end if partition.topic == topic]
        held = sum(end[partition] - first[partition] for partition in partitions)
        yield ok("topics", f"{topic}: {len(partitions)} partitions, {held:,} offsets")
    settled = yield from _pace(settings, source, sum(end.values()) - sum(first.values()))
    yield _commits(source, options)
    yield _dead_letters(settings, options)
    yield from _announcements(settings, options)
    checks, sample = sample_checks(settings, source, first, end)
    yield from checks
    yield from label_checks(settings, source, first, end)
    return replace(
        bounds, sample=sample, settings=settled, learnt_before=_learnt_before(settings, source, bounds.start)
    )


def _pace(settings: Settings, source: KafkaSource, held: int) -> Generator[CheckResult, None, Settings | None]:
    """Settle the numbers of a step; warn where batches are so large that next to nothing would be learnt."""
    try:
        found, why = numbers_for(settings, source)
        settled = with_numbers(settings, found)
        if "batch_size" in settings.training.left_to_auto:
            yield ok("pace", sentence(settled.training.numbers, why))
            return settled
        rate = records_per_s(source.resolve_start, oldest_ms=0)
    except MillraceError:  # Kafka went away since; the checks that need it say so
        return None
    rows = settled.training.numbers.batch_size
    if rate is None:
        return settled
    advised = pace_for(held, rate)
    if rows >= _FAR_TOO_LARGE * advised.batch_size:
        yield warn(
            "pace",
            f"training.batch_size: {rows:,} rows a step are many for {rate:.3g} records a second, so that a change is "
            f"learnt late; init would draft {flow(advised.training)}, or write auto",
        )
    return settled


def _commits(source: KafkaSource, options: KafkaOptions) -> CheckResult:
    try:
        if source.may_commit():
            return ok("commits", f"group {options.group_id} may be committed for")
    except MillraceError as error:
        return fail("commits", error)
    return warn("commits", f"{refused_group(options)}. A start learns all the same; lag tools see no offsets")


def _start(source: KafkaSource, start: Start) -> Mapping[Partition, int] | MillraceError:
    try:
        return source.resolve_start(start)
    except MillraceError as error:
        return error


def _learnt_before(
    settings: Settings, source: KafkaSource, start: Mapping[Partition, int] | MillraceError
) -> LostHistory | DataLossError | None:
    try:
        return None if isinstance(start, MillraceError) else lost_history(source, settings, start)
    except DataLossError as error:
        return error
    except MillraceError:  # the check of the commits says so
        return None


def _each_topic(options: KafkaOptions, known: TopicMissingError) -> Iterator[CheckResult]:
    """Check the topics one by one, because the client stops at the first one that is missing."""
    if len(options.topics) == 1:
        yield fail("topics", known)
        return
    for topic in options.topics:
        source = KafkaSource(replace(options, topics=(topic,)))
        try:
            source.start(_CONNECT_S)
            yield ok("topics", f"{topic}: {len(source.partitions())} partitions")
        except MillraceError as error:
            yield fail("topics", error)
        finally:
            source.stop(_STOP_S)


def _dead_letters(settings: Settings, options: KafkaOptions) -> CheckResult:
    name, topic = "dead letters", settings.records.dead_letters.topic
    if topic is None:
        return ok(name, "no topic is set: what cannot be learnt is counted by reason, and not kept")
    if topic in options.topics:
        text = f"records.dead_letters.topic: {topic} is learnt from itself, so letters would come back; name another"
        return fail(name, ConfigError(text))
    letters = KafkaDeadLetters(options, DeadLetterOptions(topic=topic))
    try:
        letters.start(_CONNECT_S)
    except MillraceError as error:
        return fail(name, error)
    letters.stop(_STOP_S)
    return ok(name, f"go to {topic}")


def _announcements(settings: Settings, options: KafkaOptions) -> Iterator[CheckResult]:
    if settings.export.announce is None:
        return
    writer = TopicWriter(options, settings.export.announce, setting=SETTING, thread="announcements")
    writer.start()
    try:
        writer.check(_CONNECT_S)
        yield ok("announcements", f"go to {settings.export.announce}")
    except MillraceError as error:
        yield fail("announcements", error)
    finally:
        writer.stop(_STOP_S)
