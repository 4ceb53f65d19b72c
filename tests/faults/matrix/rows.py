"""A pytest plugin: what became of each test that stands for a row of the matrix, and the figures that tests hand over.

    python -m pytest -p tests.faults.matrix.rows --rows build/rows.json

A test says which row it stands for by the marker `row(number)`, and hands figures over by `record_property`. Where
tests run in lanes (pytest-xdist), each lane knows which of them stand for a row, and whoever has started the lanes
hears how they come out.
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
    """How one test came out."""

    outcome: str = "not run"
    why: str = ""
    """Of a skip, its reason."""
    seconds: float = 0.0
    properties: dict[str, Any] = field(default_factory=dict)

    def take(self, report: pytest.TestReport) -> None:
        """The worst of setup, call and teardown."""
        self.seconds = round(self.seconds + report.duration, 2)
        self.properties.update(report.user_properties)
        if self.outcome == "not run" or _RANK[report.outcome] > _RANK[self.outcome]:
            self.outcome = report.outcome
            self.why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""


def rows_of(items: Sequence[pytest.Item]) -> dict[str, list[int]]:
    """Which rows each test stands for, of those that stand for one."""
    found = {
        item.nodeid: sorted({int(row) for marker in item.iter_markers("row") for row in marker.args}) for item in items
    }
    return {name: rows for name, rows in found.items() if rows}


class Rows:
    """Watches a session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, list[int]] = {}
        self._outcomes: defaultdict[str, Outcome] = defaultdict(Outcome)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Which tests stand for a row."""
        self._rows |= rows_of(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """The same, of a lane that is at its end; one that has died told nothing, and another takes its place."""
        self._rows |= getattr(node, "workeroutput", {}).get(_NAME, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """How it came out."""
        self._outcomes[report.nodeid].take(report)

    def pytest_sessionfinish(self) -> None:
        """Write it down."""
        tests = {name: {"rows": rows, **asdict(self._outcomes[name])} for name, rows in self._rows.items()}
        told = {"as_of": datetime.now(UTC).isoformat(timespec="seconds"), "tests": tests}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(told, indent=1))


class Lane:
    """Hands over which tests stand for a row, when the lane is at its end."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Hand it over."""
        self._told[_NAME] = rows_of(session.items)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rows`."""
    parser.addoption("--rows", type=Path, help="where to write what became of the rows of the matrix of faults")


def pytest_configure(config: pytest.Config) -> None:
    """Watch where somebody wants to know."""
    path = config.getoption("--rows")
    if path is None:
        return
    told: dict[str, Any] | None = getattr(config, "workeroutput", None)
    config.pluginmanager.register(Rows(path) if told is None else Lane(told), _NAME)
