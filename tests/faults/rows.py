"""A pytest plugin: what became of each test that stands for a row of the matrix, and the figures that tests hand over.

    python -m pytest -p tests.faults.rows --rows build/rows.json

A test says which row it stands for by the marker `row(number)`, and hands figures over by `record_property`.
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

_NAME = "rows"
_RANK = {"passed": 0, "skipped": 1, "failed": 2}


@dataclass(slots=True, kw_only=True)
class Test:
    """One test, and how it came out."""

    rows: tuple[int, ...]
    outcome: str = "not run"
    why: str = ""
    """Of a skip, its reason."""
    seconds: float = 0.0
    properties: dict[str, Any] = field(default_factory=dict)

    __test__ = False


class Rows:
    """Watches a session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, Test] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Which tests stand for a row."""
        for item in session.items:
            rows = tuple(sorted({int(row) for marker in item.iter_markers("row") for row in marker.args}))
            if rows:
                self._tests[item.nodeid] = Test(rows=rows)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of setup, call and teardown."""
        test = self._tests.get(report.nodeid)
        if test is None:
            return
        test.seconds = round(test.seconds + report.duration, 2)
        test.properties.update(report.user_properties)
        if test.outcome == "not run" or _RANK[report.outcome] > _RANK[test.outcome]:
            test.outcome = report.outcome
            test.why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""

    def pytest_sessionfinish(self) -> None:
        """Write it down."""
        told = {"as_of": datetime.now(UTC).isoformat(timespec="seconds"), "tests": {}}
        told["tests"] = {name: asdict(test) for name, test in self._tests.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(told, indent=1))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rows`."""
    parser.addoption("--rows", type=Path, help="where to write what became of the rows of the matrix of faults")


def pytest_configure(config: pytest.Config) -> None:
    """Watch where somebody wants to know."""
    path = config.getoption("--rows")
    if path is not None:
        config.pluginmanager.register(Rows(path), _NAME)
