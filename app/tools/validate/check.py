"""A check: one thing that was looked at, and what was found. Pure; imports nothing that is slow."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from consumers.errors import MillraceError


class CheckOutcome(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    """A start would go on, and somebody should look."""
    FAIL = "fail"
    """A start would be refused, or learn nothing."""
    SKIP = "skip"
    """Not looked at, because something before it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of the table."""

    name: str
    """What was looked at."""
    outcome: CheckOutcome
    detail: str
    """What was found; for a complaint, the way out as well."""
    exit_code: int = 0
    """What a start would end with; 0 unless it failed."""


def ok(name: str, detail: str) -> CheckResult:
    """Nothing to complain of."""
    return CheckResult(name=name, outcome=CheckOutcome.OK, detail=detail)


def warn(name: str, detail: str) -> CheckResult:
    """A complaint that keeps nobody from starting."""
    return CheckResult(name=name, outcome=CheckOutcome.WARN, detail=detail)


def fail(name: str, error: MillraceError) -> CheckResult:
    """What a start would be refused with."""
    return CheckResult(
        name=name, outcome=CheckOutcome.FAIL, detail=" ".join(str(error).split()), exit_code=error.exit_code
    )


def skip(name: str, why: str) -> CheckResult:
    """Not looked at."""
    return CheckResult(name=name, outcome=CheckOutcome.SKIP, detail=f"not looked at: {why}")


def exit_code_of(checks: Iterable[CheckResult]) -> int:
    """The exit code of the worst; 0 when nothing failed."""
    return max((check.exit_code for check in checks), default=0)
