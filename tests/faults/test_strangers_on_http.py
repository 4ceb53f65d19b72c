"""Whoever may reach the HTTP side of a trainer that learns: a fuzzer with a token, half-open clients, a flood."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaigns.fuzz import fuzz
from tests.faults.harness.guarded import Guarded, guarded

pytestmark = [pytest.mark.row(27), pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]
CLIENTS = Path(__file__).parents[2] / "bench" / "cases" / "clients.py"
CASES = 150
HALF_OPEN, FLOODING = 1000, 50
SECONDS, PER_SECOND = 6, 10


@pytest.fixture(scope="module")
def target(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Start one trainer for all these tests."""
    with guarded(broker, tmp_path_factory.mktemp("guarded")) as found:
        yield found


def clients(url: str, seconds: float, **options: int) -> "subprocess.Popen[str]":
    """Start clients in a process of their own."""
    told = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, str(CLIENTS), "--url", url, "--seconds", str(seconds), *told]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return dict(json.loads(printed))


def test_probes_are_answered_through_a_siege_and_the_learning_goes_on(target: Guarded) -> None:
    learnt = target.run.settled() or 0
    with (
        clients(target.url, SECONDS + 4, half_open=HALF_OPEN) as holding,
        clients(target.url, SECONDS + 4, connections=FLOODING) as flooding,
        clients(target.url, SECONDS, per_second=PER_SECOND) as besieged,
        clients(target.probes, SECONDS, per_second=PER_SECOND) as apart,
    ):
        probes = {"under siege": said(besieged), "apart": said(apart)}
        held, flood = said(holding), said(flooding)
    assert {name: (came["answers"], came["failed"]) for name, came in probes.items()} == dict.fromkeys(
        probes, (SECONDS * PER_SECOND, 0)
    )
    assert held["came"] >= HALF_OPEN
    assert flood["answers"] > FLOODING
    target.run.wait_for(lambda: (target.run.settled() or 0) > learnt, "it had learnt more")


def test_every_answer_to_a_fuzzer_is_as_the_description_says(
    target: Guarded, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = fuzz(target, tmp_path, cases=CASES, seed=11, whole=False)
    record_property("fuzz_cases", found.cases)
    assert found.failures == []
    assert found.cases >= CASES * 2 // 3
    target.run.wait_for(target.run.ready, "it was ready, once it had done what was ordered last")
