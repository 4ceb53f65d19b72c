"""What the join goes by: the settings of labels that come later, as the parts that join need them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from millrace.pipelines.schema import Field

NAME = "labels"


class Take(StrEnum):
    """Which label a record gets of several."""

    FIRST = "first"
    LAST = "last"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"


class Match(StrEnum):
    """Which records of its key and time a label belongs to."""

    ALL = "all"
    LAST_BEFORE = "last_before"
    FIRST_AFTER = "first_after"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRules:
    """How a record finds the label that comes later."""

    topics: tuple[str, ...]
    key: tuple[str, str, str]
    """The key's place in a record and in that of a label, and its dtype."""
    fields: tuple[Field, ...]
    """The labels that records get."""
    absent: Mapping[str, Any]
    """The value of each label of a record for which none came; None where it is not learnt then."""
    take: Take
    match: Match
    within_ms: int
    """How long a label may come after its record."""
    early_ms: int
    """How far times may be out of order."""
    holds: bool
    """Whether a silence that is far too long holds the records."""
    max_bytes: int
    """The most memory that labels may take."""
