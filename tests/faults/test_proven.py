"""A forked start leaves out the proof of what was proven, and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from millrace.app.service import model_setup, service
from millrace.app.settings import load
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
