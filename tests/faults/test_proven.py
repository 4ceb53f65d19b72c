"""A forked start leaves out the proof of what was proven, and nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from millrace.app.service import model_setup, service
from millrace.app.settings import load
from millrace.app.tools.validate import model_check
from millrace.app.tools.validate.check import CheckResult, ok, warn
from tests.faults.harness.project import Project
from tests.faults.harness.proven import prove_once


@pytest.fixture(autouse=True)
def _unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what is patched for a process's whole life."""
    yield
    mock.patch.stopall()


@pytest.mark.parametrize(
    ("holds", "proofs"), [([True, True], 2), ([True, None], 3), ([False], 3)], ids=["holds", "not shown", "fails"]
)
def test_only_what_holds_of_the_same_file_and_settings_is_proven_once(
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


@pytest.mark.parametrize(("said", "proofs"), [(ok, 0), (warn, 1)])
def test_a_start_leaves_out_what_a_validate_before_it_has_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[str, str], CheckResult], proofs: int
) -> None:
    prove = mock.Mock(return_value=[])
    results = [ok("state", "captured"), said("proof", "it adds up")]
    monkeypatch.setattr(model_check, "_state_and_proof", lambda _learner, _settings: iter(results))
    for where in (model_setup, service):
        monkeypatch.setattr(where, "prove", prove)
    topic: Any = SimpleNamespace(name="clicks", bootstrap="127.0.0.1:1")
    settings = load(Project(tmp_path / "first", topic).config, {}).settings
    prove_once(tmp_path)
    assert [*vars(model_check)["_state_and_proof"](None, settings)] == results
    vars(service)["prove"](None, settings)
    assert prove.call_count == proofs
