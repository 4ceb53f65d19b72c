"""A pytest plugin that writes the outcome of each test that stands for a row of the matrix, with its figures.

    python -m pytest -p tests.faults.matrix.rows --rows build/rows.json
    python -m pytest -p tests.faults.matrix.rows --rows build/rows.json --keep-rows    beside what the file holds

A test says which row it stands for by the marker `row(number)`, and passes figures on by `record_property`. Where
tests run in lanes (pytest-xdist), each lane reports at its end which of its tests stand for a row; the process that
started the lanes receives their outcomes.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

_NAME = "rows"
_RANK = {"passed": 0, "skipped": 1, "failed": 2}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of one test."""

    outcome: str = "not run"
    why: str = ""
    """Of a skip, its reason."""
    seconds: float = 0.0
    properties: dict[str, Any] = field(default_factory=dict)

    def take(self, report: pytest.TestReport) -> None:
        """Add a report of setup, call or teardown; the worst of the three counts."""
        self.seconds = round(self.seconds + report.duration, 2)
        self.properties.update(report.user_properties)
        if self.outcome == "not run" or _RANK[report.outcome] > _RANK[self.outcome]:
            self.outcome = report.outcome
            self.why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""


def rows_of(items: Sequence[pytest.Item]) -> dict[str, list[int]]:
    """Return the rows of each test that stands for one."""
    rows = {
        item.nodeid: sorted({int(row) for marker in item.iter_markers("row") for row in marker.args}) for item in items
    }
    return {name: numbers for name, numbers in rows.items() if numbers}


class Rows:
    """Collects the outcomes of a session and writes them; `keep` leaves the other tests of the file there."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self._path = path
        self._keep = keep
        self._rows: dict[str, list[int]] = {}
        self._outcomes: defaultdict[str, Outcome] = defaultdict(Outcome)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which tests stand for a row."""
        self._rows |= rows_of(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Note the same of a lane that has ended; one that died reported nothing, and another takes its place."""
        self._rows |= getattr(node, "workeroutput", {}).get(_NAME, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome."""
        self._outcomes[report.nodeid].take(report)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        tests = json.loads(self._path.read_text())["tests"] if self._keep and self._path.exists() else {}
        tests |= {name: {"rows": rows, **asdict(self._outcomes[name])} for name, rows in self._rows.items()}
        written = {"as_of": datetime.now(UTC).isoformat(timespec="seconds"), "tests": tests}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(written, indent=1))


class Lane:
    """Reports which tests stand for a row, when the lane ends."""

    def __init__(self, output: dict[str, Any]) -> None:
        self._output = output

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Report them."""
        self._output[_NAME] = rows_of(session.items)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rows` and `--keep-rows`."""
    parser.addoption("--rows", type=Path, help="where to write the outcomes of the rows of the matrix of faults")
    parser.addoption("--keep-rows", action="store_true", help="keep the outcomes of other tests that the file holds")


def pytest_configure(config: pytest.Config) -> None:
    """Collect the rows where a file for them is named."""
    path = config.getoption("--rows")
    if path is None:
        return
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    keep = config.getoption("--keep-rows")
    config.pluginmanager.register(Rows(path, keep=keep) if output is None else Lane(output), _NAME)
