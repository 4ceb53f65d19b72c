"""What the catalogue says of one metric. Pure."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
PREFIX = "millrace_"
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    short: str
    """Its name without the prefix."""
    kind: Kind
    help: str
    """What it is, and which value is bad, where one can be."""
    labels: tuple[str, ...]
    """Besides `model`."""

    @property
    def name(self) -> str:
        """The full name, as Prometheus knows it."""
        return PREFIX + self.short


def gauge(short: str, text: str, *labels: str) -> Metric:
    """Return a metric of a value that may go up and down."""
    return Metric(short=short, kind="gauge", help=text, labels=labels)


def counter(short: str, text: str, *labels: str) -> Metric:
    """Return a metric of a value that only ever grows; its name ends in `_total`."""
    return Metric(short=f"{short}_total", kind="counter", help=text, labels=labels)


def histogram(short: str, text: str, *labels: str) -> Metric:
    """Return a metric of how often which values came."""
    return Metric(short=short, kind="histogram", help=text, labels=labels)
