"""The check of a draft: the records that were looked at are decoded by it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from millrace.app.service.native_log import load_tensorflow
from millrace.app.settings import load, to_decoder
from millrace.app.tools.validate.record_check import Verdict
from millrace.consumers.records import Chunk
from millrace.pipelines.stream.decode import decode_chunk


def verdicts_of(config: Path, chunks: Sequence[Chunk]) -> Counter[Verdict]:
    """Return the verdicts on the records that do not decode by the config. Raise ConfigError where none can be read."""
    records = load(config).settings.records
    if records.format == "example" or any(feature.image for feature in records.features.values()):
        load_tensorflow()  # these decoders import it, and it would print its native lines
    decoder = to_decoder(records)
    decoded = [decode_chunk(chunk, decoder) for chunk in chunks]
    return Counter((refused.reason, refused.field) for one in decoded for refused in one.refused)


def set_aside(verdicts: Counter[Verdict]) -> dict[str, int]:
    """Return how many records would be set aside, by reason and field, most frequent first."""
    named = {(reason, field): f"{reason}{f' ({field})' if field else ''}" for reason, field in verdicts}
    return {named[verdict]: count for verdict, count in verdicts.most_common()}
