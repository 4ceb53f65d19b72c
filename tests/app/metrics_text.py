"""What /metrics answers, read as Prometheus reads it."""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from millrace.consumers.metric import PREFIX
from tests.programs import program

HOW = "`make tools` installs Debian's package prometheus, which has promtool"


@dataclass(frozen=True)
class Scrape:
    """One answer."""

    text: str

    @property
    def families(self) -> Mapping[str, Metric]:
        """By name, counters with their `_total`."""
        return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in self._parsed()}

    def value(self, short: str, **labels: str) -> float:
        """The one value of the metric that has these labels."""
        (value,) = self.values(short, **labels)
        return value

    def values(self, short: str, **labels: str) -> list[float]:
        """All values that have these labels."""
        found = [sample for family in self._parsed() for sample in family.samples if sample.name == PREFIX + short]
        return [sample.value for sample in found if labels.items() <= sample.labels.items()]

    @property
    def law(self) -> tuple[float, float]:
        """What was fetched, and what became of it."""
        parts = ("records_learnt_total", "records_set_aside_total", "records_skipped_total", "records_filtered_total")
        became = sum(sum(self.values(part)) for part in (*parts, "records_held", "records_discarded_total"))
        return self.value("records_fetched_total"), became

    @property
    def counters(self) -> Mapping[str, float]:
        """Every series that must never go back."""
        return {
            f"{sample.name}{sorted(sample.labels.items())}": sample.value
            for family in self._parsed()
            if family.type in ("counter", "histogram")
            for sample in family.samples
        }

    def _parsed(self) -> Iterator[Metric]:
        return iter(text_string_to_metric_families(self.text))


def complaints(text: str) -> str:
    """What Prometheus' own tool finds wrong with it; nothing where it finds nothing."""
    promtool = program("promtool", how=HOW)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"it ended with {done.returncode}"


def rule_complaints(rules: Path) -> str:
    """The same of a file of alert rules."""
    promtool = program("promtool", how=HOW)
    done = subprocess.run(
        [promtool, "check", "rules", str(rules)], capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
