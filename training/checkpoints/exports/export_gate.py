"""The gate of automatic exports: conditions on what is known when a checkpoint has become durable.

Pure. A condition is a name, a comparison and a value: `auc >= 0.30`, `staleness < 5m`, `records > 100_000`. It is held
where the value is not known, or is no number.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

RECORDS, STALENESS = "records", "staleness"
_FORM = re.compile(r"\s*([A-Za-z_][\w/.-]{0,99}?)\s*(>=|<=|>|<)\s*(\S{1,40})\s*", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(_\d{3})*)(\.\d+)?(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class ExportCondition:
    """One comparison."""

    text: str
    name: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return self.text

    def complaint(self, values: Mapping[str, float]) -> str | None:
        """Return what is missing; None where the condition holds."""
        value = values.get(self.name)
        if value is None or math.isnan(value):
            return (
                f"{self.name} is not known yet, and has to be {self.sign} {self.text.rpartition(self.sign)[2].strip()}"
            )
        if _HOLDS[self.sign](value, self.bound):
            return None
        shown = f"{value:.1f}s" if self.name == STALENESS else f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"
        return f"{self.name} is {shown}, and {self.text} is asked"


def parse_condition(text: object) -> ExportCondition:
    """Read a condition. Raises ValueError with what is wrong and an example."""
    if isinstance(text, ExportCondition):
        return text
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{str(text)[:120]!r} is no condition; write a name, >=, <=, > or <, and a value: loss < 0.4")
    name, sign, value = found.groups()
    duration = _DURATION.fullmatch(value)
    if name == STALENESS:
        if duration is None:
            raise ValueError(f"{value!r} is no duration, which {STALENESS} is compared with; write 5m, or 30s")
        return ExportCondition(" ".join(found.groups()), name, sign, float(duration[1]) * _SECONDS[duration[2]])
    if not _NUMBER.fullmatch(value):
        raise ValueError(f"{value!r} is no number, which {name} is compared with; write 0.30, or 100_000")
    return ExportCondition(" ".join(found.groups()), name, sign, float(value.replace("_", "")))


def unknown_names(conditions: Iterable[ExportCondition], metrics: Collection[str]) -> list[str]:
    """Return the names in conditions that are neither of the model's metrics nor known of every model."""
    return sorted({one.name for one in conditions} - {RECORDS, STALENESS, *metrics})


def missing(conditions: Iterable[ExportCondition], values: Mapping[str, float]) -> tuple[str, ...]:
    """Return what is missing, a text for each condition that does not hold."""
    return tuple(text for one in conditions if (text := one.complaint(values)) is not None)
