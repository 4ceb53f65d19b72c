"""The check of the records: a sample of each partition, from its beginning and its end, decodes by the schema.

Counts and names fields; never shows a value.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from millrace.app.service.kept_sample import Positions, read_between, rows_of
from millrace.app.settings import Settings, to_decoder, to_format, to_schema
from millrace.app.settings.sections.records import RecordsSettings
from millrace.app.tools.validate.check import CheckOutcome, CheckResult, fail, ok, warn
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk
from millrace.consumers.rounded import cut_list
from millrace.pipelines.formats.conformance import findings
from millrace.pipelines.gates.flood import PauseAboveSettings
from millrace.pipelines.stream.decode import NO_VALUE, Decoded, Refused, decode_chunk
from millrace.pipelines.stream.record_sample import RecordSample, sample_of

_NAME = "records"
_SAMPLE = 400
"""Records in all, half of them from the beginnings and half from the ends."""
_SHOWN = 5

_WAY_OUT: Mapping[Reason, str] = {
    Reason.MALFORMED: "compare records.format with what is produced",
    Reason.UNKNOWN_SCHEMA: "look for the schema in the registry, by the number after the value's first byte",
    Reason.EMPTY: "tombstones and empty values are set aside, always",
    Reason.MISSING: "give the field a `missing` value, or correct its name by `field`",
    Reason.WRONG_TYPE: "give the field the dtype that is produced",
    Reason.WRONG_SHAPE: "give the field the shape that is produced",
    Reason.OUT_OF_RANGE: "give the field a wider dtype, or wider `min` and `max`",
    Reason.NOT_ALLOWED: "list the value in the field's `one_of`, if it is to be learnt from",
    Reason.BAD_IMAGE: "compare `image`, bytes or base64, with what is produced; JPEG and PNG are read",
    Reason.NOT_FINITE: "have the producer leave the field out, and give it a `missing` value",
}

Verdict = tuple[Reason, str | None]


def format_checks(records: RecordsSettings) -> Iterator[CheckResult]:
    """Check that a format of the user's keeps what every format keeps, a line for each law; nothing for one of ours."""
    if isinstance(records.format, str):
        return
    try:
        form = to_format(records)
    except MillraceError as error:
        yield fail("format", error)
        return
    for found in findings(form, to_schema(records)):
        if found.fault is None:
            yield ok("format", found.law)
        else:
            text = f"records.format: {records.format}: it does not hold that {found.law}: {found.fault}"
            yield fail("format", ConfigError(text))


def sample_checks(
    settings: Settings, source: KafkaSource, first: Positions, end: Positions
) -> tuple[list[CheckResult], RecordSample | None]:
    """Read a sample and decode it; return the records too, to try the model on.

    Topics whose records are written otherwise than the others' are judged each by itself.
    """
    try:
        decoder = to_decoder(settings.records)
        chunks = [*_sample(source, first, end)]
        decoded = [decode_chunk(chunk, decoder) for chunk in chunks]
    except MillraceError as error:
        return [fail(_NAME, error)], None
    if not settings.records.by_topic:
        results = [_judged_topic(settings, chunks, decoded)]
    else:
        results = []
        for topic in settings.kafka.topics:
            mine = [(chunk, one) for chunk, one in zip(chunks, decoded, strict=True) if chunk.partition.topic == topic]
            found = _judged_topic(settings, [chunk for chunk, _ in mine], [one for _, one in mine])
            results.append(replace(found, detail=f"{topic}: {found.detail}"))
    if not any(map(len, decoded)):
        return results, None
    return results, sample_of(rows_of(decoded, settings), _SAMPLE)


def _judged_topic(settings: Settings, chunks: Sequence[Chunk], decoded: Sequence[Decoded]) -> CheckResult:
    refused = [each for one in decoded for each in one.refused]
    verdicts = Counter((each.reason, each.field) for each in refused)
    above = settings.records.dead_letters.pause_above
    looked_at, filtered = sum(map(len, chunks)), sum(len(one.filtered) for one in decoded)
    if filtered and filtered == looked_at:
        return warn(
            _NAME, f"none of {looked_at} sampled records matches records.where: nothing would be learnt of such records"
        )
    result = judged(looked_at, verdicts, above, _pausing(settings, refused))
    if filtered:
        result = replace(result, detail=f"{result.detail}; records.where filters {filtered} of them")
    if result.outcome is CheckOutcome.OK and (lacking := unheld_slices(decoded)):
        names = ", ".join(map(repr, lacking))
        result = warn(
            _NAME, f"{result.detail}; records.slices: none of them holds {names}: correct the name, or `field`"
        )
    return result


def unheld_slices(decoded: Sequence[Decoded]) -> list[str]:
    """Return the slices of which no row has a value."""
    found: dict[str, set[str]] = {}
    for one in decoded:
        for name, slices in one.slices.items():
            found.setdefault(name, set()).update(slices.values)
    return [name for name, values in found.items() if values == {NO_VALUE}]


def judged(
    looked_at: int, verdicts: Counter[Verdict], flood: PauseAboveSettings | None = None, schema: str | None = None
) -> CheckResult:
    """Return the result of the verdicts on a sample.

    So many bad ones may be a `flood`, for which learning pauses, as it does for a `schema` that cannot be read.
    """
    refused = verdicts.total()
    if not looked_at:
        return warn(_NAME, "the topic holds no record yet, so the schema was not tried; validate again when it does")
    if not refused:
        return ok(_NAME, f"all of {looked_at} sampled records decode")
    why = f"{_listed(verdicts, looked_at)}; {_WAY_OUT[verdicts.most_common(1)[0][0][0]]}"
    if refused == looked_at:
        return fail(_NAME, ConfigError(f"records: none of {looked_at} sampled records decodes: {why}"))
    good = _share(looked_at - refused, looked_at)
    if schema is not None:
        return warn(
            _NAME, f"{looked_at - refused} of {looked_at} sampled records decode ({good}), and learning would {schema}"
        )
    if flood is not None and refused > flood.share * looked_at:
        bound = f"records.dead_letters.pause_above.share is {flood.share * 100:g} %, so the learning would pause"
        return warn(_NAME, f"{looked_at - refused} of {looked_at} sampled records decode ({good}), and {bound}: {why}")
    return warn(
        _NAME, f"{looked_at - refused} of {looked_at} sampled records decode ({good}), the others are set aside: {why}"
    )


def _share(count: int, looked_at: int) -> str:
    return f"{100 * count / looked_at:.3g} %"


def _pausing(settings: Settings, refused: Sequence[Refused]) -> str | None:
    """Return what the learning would pause at; None where it would not."""
    registry = settings.records.registry
    if registry is None or registry.on_incompatible != "pause":
        return None
    found = [one for one in refused if one.detail is not None and one.field is not None]
    if not found:
        return None
    one = found[0]
    return f"pause at schema {one.schema}, which does not give {one.field!r}: {one.detail}; give it a `missing` value"


def _listed(verdicts: Counter[Verdict], looked_at: int) -> str:
    shown = [
        f"{count} {reason.value} ({_share(count, looked_at)}{'' if field is None else f', field {field!r}'})"
        for (reason, field), count in verdicts.most_common()
    ]
    return cut_list(shown, _SHOWN, of="kinds")


def _sample(source: KafkaSource, first: Positions, end: Positions) -> Iterator[Chunk]:
    """Give some records from the beginning of each partition, then some from its end; no record twice."""
    share = math.ceil(_SAMPLE / 2 / max(1, len(first)))
    head_end = {partition: min(offset + share, end[partition]) for partition, offset in first.items()}
    tail = {partition: max(offset - share, head_end[partition]) for partition, offset in end.items()}
    yield from read_between(source, 1, first, head_end)
    yield from read_between(source, 2, tail, end)
