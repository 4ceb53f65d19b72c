"""Ranges of offsets as people write them: `clicks:0:100-200`, both ends included. Pure; runs anywhere."""

import re
from collections.abc import Sequence

from consumers.errors import ConfigError
from consumers.records import Partition
from training.ledger.skips import Skip, uncovered

_RANGE = re.compile(r"(?P<partition>.{1,249}:\d{1,9}):(?P<first>\d{1,18})-(?P<last>\d{1,18})", re.ASCII)


def parse_skips(texts: Sequence[str], reason: str | None) -> list[Skip]:
    """The ranges of one order; where they overlap, an offset belongs to the first."""
    skips: list[Skip] = []
    for text in texts:
        skips.extend(uncovered(_parse(text, reason or "no reason was given"), skips))
    return skips


def _parse(text: str, reason: str) -> Skip:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"skip: {text[:60]!r} is not a range of offsets; write topic:partition:first-last, as in clicks:0:100-200"
        )
    first, last = int(match["first"]), int(match["last"])
    if last < first:
        raise ConfigError(f"skip: {text[:60]!r} ends before it begins; write the smaller offset first")
    partition = Partition.parse(match["partition"])
    return Skip(order="", partition=partition, start=first, end=last + 1, reason=reason)
