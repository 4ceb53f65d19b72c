"""A forked start leaves out the proof of what was proven, and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from millrace.app.service import model_setup, service
from millrace.app.settings import load
from millrace.app.tools.validate import model_check
from millrace.app.tools.validate.check import CheckOutcome, CheckResult
from tests.faults.harness.project import Project
from tests.faults.harness.proven import prove_once


@pytest.fixture(autouse=True)
def _unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what is patched for a process's whole life."""
    yield
    mock.patch.stopall()


@pytest.mark.parametrize(
    ("holds", "proofs"), [([True, True], 2), ([True, None], 2), ([True, False], 3)], ids=["holds", "not shown", "fails"]
)
def test_only_what_does_not_fail_of_the_same_file_and_settings_is_proven_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: list[bool | None], proofs: int
) -> None:
    proven: list[str] = []

    def prove(_learner: Any, settings: Any) -> list[Any]:
        proven.append(settings.name)
        return [SimpleNamespace(holds=one) for one in holds]

    monkeypatch.setattr(model_setup, "prove", prove)
    monkeypatch.setattr(service, "prove", prove)
    topic: Any = SimpleNamespace(name="clicks", bootstrap="127.0.0.1:1")
    first = load(Project(tmp_path / "first", topic).config, {}).settings
    other = load(Project(tmp_path / "other", topic, training={"passes": 2}).config, {}).settings
    prove_once(tmp_path)
    for settings in (first, first, other):
        vars(service)["prove"](None, settings)
    assert len(proven) == proofs


@pytest.mark.parametrize(
    ("outcome", "workers", "proofs"),
    [(CheckOutcome.OK, 1, 0), (CheckOutcome.WARN, 1, 1), (CheckOutcome.OK, 2, 1)],
    ids=["holds", "not shown", "of one process, for a group"],
)
def test_what_validate_has_proven_a_start_does_not_prove_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: CheckOutcome, workers: int, proofs: int
) -> None:
    proven: list[str] = []

    def prove(_learner: Any, settings: Any) -> list[Any]:
        proven.append(settings.name)
        return [SimpleNamespace(holds=True)]

    checked = [CheckResult(name="proof", outcome=outcome, detail="")]
    monkeypatch.setattr(model_setup, "prove", prove)
    monkeypatch.setattr(service, "prove", prove)
    monkeypatch.setattr(model_check, "_state_and_proof", lambda *_given: iter(checked))
    topic: Any = SimpleNamespace(name="clicks", bootstrap="127.0.0.1:1")
    addresses = [f"127.0.0.1:{port}" for port in range(1, workers + 1)]
    scale = {"workers": workers, "index": 0, "addresses": addresses} if workers > 1 else {}
    settings = load(Project(tmp_path / "first", topic, scale=scale).config, {}).settings
    prove_once(tmp_path)
    assert [*vars(model_check)["_state_and_proof"](None, settings)] == checked
    vars(service)["prove"](None, settings)
    assert len(proven) == proofs
