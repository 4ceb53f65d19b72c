"""Leaves out the proof of a model that an earlier forked start has proven: the same file under the same settings.

The proof is half of what a start of a small model computes, and most forked starts are restarts. A cold start proves
always, as users' starts do, and so do a group's workers, who prove together. A model of which a claim does not hold, or
could not be shown, is proven by each start.
"""

import hashlib
from pathlib import Path
from typing import Any
from unittest import mock

from millrace.app.service import model_setup, service
from millrace.app.settings import Settings

_DECIDES = frozenset({"records", "model", "training", "balance", "windows", "reservoir"})
"""The sections of settings on which the outcome of a proof depends."""


def prove_once(notes: Path) -> None:
    """From now on, prove in this process only what `notes` does not name, and note there what was proven."""
    prove = model_setup.prove

    def unless_noted(learner: Any, settings: Settings) -> Any:
        note = notes / _identity(settings)
        if note.exists():
            return []
        findings = prove(learner, settings)
        if all(finding.holds for finding in findings):
            note.touch()
        return findings

    mock.patch.object(service, "prove", unless_noted).start()


def _identity(settings: Settings) -> str:
    code = settings.model.build.file.read_bytes()
    return hashlib.sha256(code + settings.model_dump_json(include=set(_DECIDES)).encode()).hexdigest()
