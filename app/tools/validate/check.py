"""A check: one thing that was examined, and the outcome. Pure; imports nothing that is slow."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from millrace.consumers.errors import MillraceError


class CheckOutcome(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARN = "warn"
    """A start would succeed, but something deserves attention."""
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
    """Return a result without a complaint."""
    return CheckResult(name=name, outcome=CheckOutcome.OK, detail=detail)


def warn(name: str, detail: str) -> CheckResult:
    """Return a complaint that does not prevent a start."""
    return CheckResult(name=name, outcome=CheckOutcome.WARN, detail=detail)


def fail(name: str, error: MillraceError) -> CheckResult:
    """Return the error with which a start would be refused."""
    return CheckResult(
        name=name, outcome=CheckOutcome.FAIL, detail=" ".join(str(error).split()), exit_code=error.exit_code
    )


def skip(name: str, why: str) -> CheckResult:
    """Return that something was not examined, and why."""
    return CheckResult(name=name, outcome=CheckOutcome.SKIP, detail=f"not looked at: {why}")


def exit_code_of(checks: Iterable[CheckResult]) -> int:
    """Return the exit code of the worst failure; 0 where nothing failed."""
    return max((check.exit_code for check in checks), default=0)
