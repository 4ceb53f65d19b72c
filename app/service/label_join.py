"""The wiring of labels that come later: a source of their own, their reader, and the gate that records wait at."""

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version

from millrace.app.service.holding import SourceView
from millrace.app.service.kept_sample import rows_of
from millrace.app.settings import Settings, to_decoder
from millrace.app.settings.connection import kafka_options
from millrace.consumers.errors import ConfigError, DataLossError, UnreachableError
from millrace.consumers.kafka.positions import Ago, At, Earliest, Latest, Now, Start, Until
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.shaping.labels.arrivals import ArrivalReader
from millrace.pipelines.shaping.labels.clock import NEVER, Jumps, LabelClocks
from millrace.pipelines.shaping.labels.join import UNKNOWN, Connected, Ends, LabelShaper
from millrace.pipelines.shaping.labels.label_reader import Kept, LabelReader, Role
from millrace.pipelines.shaping.labels.rivals import RivalReader
from millrace.pipelines.shaping.labels.segments import Segments
from millrace.pipelines.shaping.shaper import Shaper
from millrace.pipelines.stream.assemble import Shape
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped

_CONNECT_S = 30.0
_STOP_S = 5.0
_ASK_EVERY_S = 0.01
_GONE_S = 30.0
"""After this long without a label, while Kafka answers, records that are learnt again wait no more."""
_AWAY_S = 600.0
"""After this long without an answer of Kafka they wait no more: brokers that are updated are back by then."""


def connect_labels(
    settings: Settings,
    shapers: Sequence[Shaper],
    jumps: Jumps,
    opened: ExitStack,
    ends: Callable[[], Ends],
    role: Role = Role.ALONE,
    of_records: Collection[Partition] = (),
) -> LabelGate | None:
    """Connect to the topics of labels; return what records wait at, or None if they hold their labels themselves.

    `ends` returns where the partitions of records end, as far as that is known; `of_records` are these partitions.
    """
    shaper = next((one for one in shapers if isinstance(one, LabelShaper)), None)
    if shaper is None:
        return None
    options = replace(
        kafka_options(settings.kafka),
        topics=settings.labels.topics,
        out_of_range="fail",
        on_recreated="fail",
        freeze_partitions=True,
        only_given=role is Role.OWN,
    )
    source = KafkaSource(options)
    source.start(_CONNECT_S)
    opened.callback(source.stop, _STOP_S)
    if role is Role.OWN:
        _require_as_many(settings.labels.topics, source.partitions(), of_records)
    clocks = LabelClocks(jumps, early_ms=shaper.rules.early_ms)
    decoder = to_decoder(settings.labels.records(), wait_s=0.0)
    segments = _segments(settings, jumps) if role is Role.ALONE else None
    kept = Kept(shaper.index, clocks, shaper.silence, segments)
    on_turn = shaper.expire if role is Role.ALONE else None
    reader = LabelReader(shaper.rules, source, decoder, kept, on_turn, role=role)
    opened.callback(reader.stop)
    connected = Connected(reader, jumps, lambda: first_labels(settings, source), ends)
    sources = [source]
    if shaper.index.rivals is not None:
        others = KafkaSource(replace(kafka_options(settings.kafka), freeze_partitions=True))
        others.start(_CONNECT_S)
        opened.callback(others.stop, _STOP_S)
        sources.append(others)
        of_rivals = to_decoder(settings.records, wait_s=0.0)
        rivals = RivalReader(shaper.rules, others, of_rivals, jumps.beside("rival_jumps"), shaper.index.rivals)
        opened.callback(rivals.stop)
        connected = connected._replace(rivals=rivals, first_rivals=lambda: first_labels(settings, others))
    shaper.connect(connected)
    return LabelGate(shaper.rules, reader, connected.rivals, lambda: why_away(sources))


def _segments(settings: Settings, jumps: Jumps) -> Segments | None:
    """Return what keeps labels for the next start; None where they are read by what the settings do not hold."""
    texts = any(field.numpy_dtype.hasobject for field in settings.labels.fields())
    if jumps.folder is None or texts or settings.labels.format not in {"json", "csv"}:
        return None
    made_by = hashlib.sha256(f"{version('millrace')} {settings.labels.model_dump_json()}".encode()).hexdigest()
    return Segments(jumps.folder, made_by)


def follow_arrivals(settings: Settings, opened: ExitStack) -> ArrivalReader | None:
    """Connect to the records' topics once more; return what reads records when they arrive, or None for no score."""
    share = settings.labels.score_on_arrival
    if not settings.labels.used or not share:
        return None
    source = KafkaSource(kafka_options(settings.kafka))
    source.start(_CONNECT_S)
    opened.callback(source.stop, _STOP_S)
    # On a thread of its own, which may wait for a schema.
    decoder = to_decoder(settings.records, wait_s=_STOP_S)
    reader = ArrivalReader(source, decoder, share, lambda decoded: rows_of([decoded], settings)[0])
    opened.callback(reader.stop)
    return reader


def _require_as_many(topics: Sequence[str], labels: Collection[Partition], records: Collection[Partition]) -> None:
    """Raise ConfigError unless each topic of labels has the partitions that the one of the records has."""
    wanted = {partition.number for partition in records}
    for topic in topics:
        if (found := {partition.number for partition in labels if partition.topic == topic}) != wanted:
            raise ConfigError(
                f"labels.co_partitioned: {topic} has {len(found)} partitions, and the topic of the records has "
                f"{len(wanted)}; set it to false"
            )


def ends_of(records: KafkaSource) -> Ends:
    """Return where the partitions of records end, as far as that is known."""
    lag = records.statistics().lag
    if lag.ends_asked is None:
        return UNKNOWN
    offsets = {partition: one.end for partition, one in lag.partitions.items() if one.end is not None}
    return Ends(offsets, round(lag.ends_asked * 1000))


def why_away(sources: Sequence[SourceView]) -> str | None:
    """Return why Kafka does not answer one of these sources; None if it answers all of them."""
    away = (found for source in sources if not (found := source.statistics()).connected)
    return next((found.last_error or "no answer yet" for found in away), None)


def awaited(gate: LabelGate, shape: Shape) -> Shape:
    """Return what shapes a chunk once its labels have been read.

    It raises DataLossError if they are not there any more, and UnreachableError if Kafka stays away.
    """

    def shaped(decoded: Decoded) -> tuple[Decoded, Sequence[Skipped]]:
        through, answers, since = gate.through, gate.away() is None, time.monotonic()
        while not gate.admits(decoded):
            away, waited = gate.away(), time.monotonic() - since
            if gate.through > through or answers != (away is None):
                through, answers, since = gate.through, away is None, time.monotonic()
            elif away is None and waited > _GONE_S:
                raise DataLossError(
                    f"labels of {decoded.partition} up to offset {decoded.end - 1} do not come: their topics, or "
                    f"the moments up to which they counted as read, are not what they were"
                )
            elif away is not None and waited > _AWAY_S:
                raise UnreachableError(
                    f"labels of {decoded.partition} up to offset {decoded.end - 1} do not come, as Kafka has been away "
                    f"for {waited:,.0f} s ({away}); run this again when Kafka answers"
                )
            time.sleep(_ASK_EVERY_S)
        return shape(decoded)

    return shaped


def first_labels(settings: Settings, source: KafkaSource) -> dict[Partition, tuple[int, int]]:
    """Return where the labels of the very first records may begin, each with a clock that knows nothing yet."""
    start, early_s = settings.kafka.start_position, 2 * settings.labels.early
    match start:
        case Latest():
            begin: Start = Ago(settings.labels.due_after + early_s)
        case Ago(seconds):
            begin = Ago(seconds + early_s)
        case At(timestamp_ms):
            begin = At(max(0, timestamp_ms - round(early_s * 1000)))
        case _:
            begin = Earliest()
    return {partition: (offset, NEVER) for partition, offset in source.resolve_start(begin).items()}


def due_start(settings: Settings) -> Start:
    """Return where the very first start begins: with labels that come later, the latest record is one that is due."""
    start = settings.kafka.start_position
    return Ago(settings.labels.due_after) if settings.labels.used and isinstance(start, Latest) else start


def due_until(settings: Settings, until: Until) -> Until:
    """Return where a run ends: with labels that come later, now is before the first record that is not due."""
    if not settings.labels.used or not isinstance(until, Now):
        return until
    return At(max(0, round((time.time() - settings.labels.due_after) * 1000)))
