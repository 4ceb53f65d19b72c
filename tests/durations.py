"""The ledger of how long tests take, tests/durations.json: lanes are filled by it, and `make test` is short by it.

    python -m tests.durations build/tests/*.xml        after `make test WHOLE=1` on a quiet machine; `make durations`

It holds the seconds of each test that takes a second, and of each file what its other tests take together. A figure
stays until it is wrong by half, so that measuring again changes few lines.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
LEDGER = Path(__file__).with_name("durations.json")
LONG_S = 1.0
"""`make test` leaves out what takes longer, but for the laws: most of its tests are done in a tenth of a second."""
_LAWS = "tests/properties/"
_OF_ITS_OWN_S, _WRONG_BY = 1.0, 1.5

Durations = Mapping[str, float]
"""Seconds, by the names of tests and of files."""


@cache
def recorded() -> Durations:
    """Return what the ledger holds."""
    return dict(json.loads(LEDGER.read_text()))


def is_long(test: str) -> bool:
    """Whether the ledger says that this test is one for `make test WHOLE=1`.

    A test that it does not know is none, nor are the laws that are shown in process, however long that takes.
    """
    return recorded().get(test, 0.0) > LONG_S and not test.startswith(_LAWS)


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def seconds_of(tests: Iterable[str], durations: Durations) -> float:
    """Return how long these tests take one after the other; what a file's small ones take counts once."""
    tests = list(tests)
    return sum(durations.get(name, 0.0) for name in (*tests, *set(map(file_of, tests))))


def read(report: Path) -> Iterator[tuple[str, float]]:
    """Give each test of a JUnit report with its seconds, setup and teardown included."""
    for case in ET.parse(report).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        end = next(number for number, part in enumerate(parts, start=1) if part.startswith("test_"))
        file = "/".join(parts[:end]) + ".py"
        yield "::".join((file, *parts[end:], case.attrib["name"])), float(case.attrib["time"])


def merged(before: Durations, measured: Durations) -> Durations:
    """Return the ledger after a measurement of some tests; what was not measured stays, if it still exists."""
    by_file: defaultdict[str, float] = defaultdict(float)
    now: dict[str, float] = {}
    for test, seconds in measured.items():
        listed_before = before.get(test, 0.0) > 0.0
        if seconds >= _OF_ITS_OWN_S / (_WRONG_BY if listed_before else 1.0):
            now[test] = seconds
        else:
            by_file[file_of(test)] += seconds
    now |= by_file
    known = {*measured, *map(file_of, measured)}
    kept = {name: seconds for name, seconds in before.items() if name not in known and _exists(name)}
    settled = {name: _settled(before.get(name), seconds) for name, seconds in now.items()}
    return dict(sorted((kept | {name: seconds for name, seconds in settled.items() if seconds}).items()))


def _settled(before: float | None, now: float) -> float:
    """Return a rounded figure: the one before, unless it is wrong by half."""
    if before is not None and before / _WRONG_BY <= now <= before * _WRONG_BY:
        return before
    return round(now, 1) if now < 10 else round(now)


def _exists(name: str) -> bool:
    """Whether the file is there, with the test's function or class in it."""
    file, _, test = name.partition("::")
    path, defined = ROOT / file, test.partition("[")[0].partition("::")[0]
    return path.exists() and re.search(rf"\b{defined}\b", path.read_text()) is not None


def main() -> None:
    """Write into the ledger what the reports hold."""
    parser = argparse.ArgumentParser(description="Write how long tests took into tests/durations.json.")
    parser.add_argument("reports", type=Path, nargs="+", help="what pytest has left by --junitxml")
    reports: list[Path] = parser.parse_args().reports
    measured = dict(pair for report in reports for pair in read(report))
    before = recorded() if LEDGER.exists() else {}
    LEDGER.write_text(json.dumps(merged(before, measured), indent=1) + "\n")


if __name__ == "__main__":
    main()
