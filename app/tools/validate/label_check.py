"""The check of labels that come later: the topics are there, their records decode, and the two find each other by key.

It joins what it has read of both in memory, and says after which time labels come. Never shows a value.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from millrace.app.service.kept_sample import Positions, read_between
from millrace.app.settings import Settings, to_decoder
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.labels import KEY
from millrace.app.tools.validate.check import CheckResult, fail, ok, warn
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.positions import At, Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Int64s
from millrace.consumers.rounded import rounded_age, rounded_size
from millrace.pipelines.schema import Column
from millrace.pipelines.stream.decode import Decoded, decode_chunk

_NAME = "labels"
_CONNECT_S, _STOP_S = 10.0, 5.0
_LABELS, _RECORDS = 20_000, 20_000
"""Records of both that are read at most."""


def label_checks(settings: Settings, source: KafkaSource, first: Positions, end: Positions) -> Iterator[CheckResult]:
    """Check the topics of labels, if the settings name any."""
    if not settings.labels.used:
        return
    labels = KafkaSource(replace(kafka_options(settings.kafka), topics=settings.labels.topics))
    try:
        labels.start(_CONNECT_S)
        yield from _joined(settings, source, labels, first, end)
    except MillraceError as error:
        yield fail(_NAME, error)
    finally:
        labels.stop(_STOP_S)


def _joined(
    settings: Settings, source: KafkaSource, labels: KafkaSource, first: Positions, end: Positions
) -> Iterator[CheckResult]:
    ends, begins = labels.resolve_start(Latest()), labels.resolve_start(Earliest())
    share = -(-_LABELS // max(1, len(ends)))
    starts = {partition: max(begins[partition], offset - share) for partition, offset in ends.items()}
    decoder = to_decoder(settings.labels.records())
    sampled = [*read_between(labels, 0, starts, ends, counted=False)]
    found = [decode_chunk(chunk, decoder) for chunk in sampled]
    read, bad = sum(map(len, found)), sum(len(one.refused) for one in found)
    if not read:
        which = (
            f"none of {bad} sampled labels decodes; compare labels.format and labels.label" if bad else "there is none"
        )
        yield warn(_NAME, f"{', '.join(settings.labels.topics)}: {which}, so no record would get one")
        return
    yield ok(_NAME, f"{read:,} sampled labels decode{f', {bad:,} do not and are refused' if bad else ''}")
    if (workers := settings.scale.workers) > 1 and not settings.labels.co_partitioned:
        there = sum(ends[partition] - begin for partition, begin in begins.items())
        sizes = [len(one) for chunk in sampled for one in (*chunk.keys, *chunk.values) if one is not None]
        size = rounded_size(sum(sizes) * there // sum(map(len, sampled)))
        yield ok(
            _NAME, f"each of {workers} workers reads all labels: {there:,} are there, about {size}, {workers} times"
        )
    oldest = min(int(one.event_times.min()) for one in found if len(one))
    begin = source.resolve_start(At(max(0, oldest - settings.labels.rules.early_ms)))
    begin = {partition: max(first[partition], offset) for partition, offset in begin.items() if partition in end}
    until = {p: min(end[p], offset + -(-_RECORDS // max(1, len(begin)))) for p, offset in begin.items()}
    chunks = read_between(source, 0, begin, until, counted=False)
    records = [decode_chunk(chunk, to_decoder(settings.records)) for chunk in islice(chunks, _RECORDS)]
    yield _met(settings, records, found)
    if settings.labels.co_partitioned:
        yield _lie_together(records, found)


def _lie_together(records: list[Decoded], labels: list[Decoded]) -> CheckResult:
    """Say whether labels lie in the partitions of their records."""
    places = {(key, one.partition.number) for one in labels for key in one.features[KEY].tolist()}
    labelled = {key for key, _ in places}
    met = [(key, one.partition.number) for one in records for key in _keys(one).tolist() if key in labelled]
    apart = sum(place not in places for place in met)
    if apart:
        why = f"{apart:,} of {len(met):,} sampled records have their label in a partition of another number"
        return fail(_NAME, MillraceError(f"labels.co_partitioned: {why}; set it to false"))
    return ok(_NAME, f"the labels of {len(met):,} sampled records lie in partitions of the same number")


def _met(settings: Settings, records: list[Decoded], labels: list[Decoded]) -> CheckResult:
    """Say how many records have a label, and after which time."""
    times: dict[object, int] = {}
    for one in labels:
        for key, at in zip(one.features[KEY].tolist(), one.event_times.tolist(), strict=True):
            times[key] = min(at, times.get(key, at))
    delays, looked_at = [_delays(one, times) for one in records], sum(map(len, records))
    late = np.concatenate([np.empty(0, np.int64), *delays])
    rules = settings.labels.rules
    if not looked_at:
        return warn(_NAME, "no record is as new as the sampled labels, so it is not known whether they find each other")
    if not len(late):
        return warn(
            _NAME,
            f"none of {looked_at:,} records has the key of a label: compare {rules.key[0]!r} of records with "
            f"{rules.key[1]!r} of labels",
        )
    median, most = (rounded_age(float(np.percentile(late, share)) / 1000) for share in (50, 99))
    said = (
        f"{len(late) / looked_at:.1%} of {looked_at:,} sampled records have a label: half of these come within "
        f"{median}, and 99 % within {most}"
    )
    beyond = float((late > rules.within_ms).mean())
    if beyond > 0.01:
        return warn(_NAME, f"{said}; {beyond:.0%} come later than labels.within, and are not used: raise it")
    before = float((late < -rules.early_ms).mean())
    if before > 0.01:
        return warn(_NAME, f"{said}; {before:.0%} are older than their record by more than labels.early: raise it")
    return ok(_NAME, said)


def _delays(records: Decoded, times: dict[object, int]) -> Int64s:
    found = [
        times[key] - at
        for key, at in zip(_keys(records).tolist(), records.event_times.tolist(), strict=True)
        if key in times
    ]
    return np.array(found, np.int64)


def _keys(records: Decoded) -> Column:
    return records.keys if records.keys is not None else np.empty(0, object)
