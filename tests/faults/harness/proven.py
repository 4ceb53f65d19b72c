"""Leaves out the proof of a model that an earlier forked start has proven: the same file under the same settings.

The proof is half of what a start of a small model computes, and most forked starts are restarts. A cold start proves
always, as users' starts do. The workers of a group prove together, so all of them must prove or none: none can end its
proof before all have begun theirs, and only who has ended one makes a note. A worker that replaces itself by a new
process goes by the notes as well, and `validate` notes what it has proven. A model of which a claim does not hold is
proven by each start.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from millrace.app.service import group_service, model_setup, service
from millrace.app.settings import Settings
from millrace.app.tools.fork import fork
from millrace.app.tools.pretrain import pretrain
from millrace.app.tools.validate import model_check
from millrace.app.tools.validate.check import CheckOutcome, CheckResult

_DECIDES = dict.fromkeys(("records", "model", "training", "balance", "windows", "reservoir"), True)
"""The sections of settings on which the outcome of a proof depends, beside how many workers a group has."""


def prove_once(notes: Path) -> None:
    """From now on, prove in this process only what `notes` does not name, and note there what was proven."""
    prove, check = model_setup.prove, model_check._state_and_proof

    def unless_noted(learner: Any, settings: Settings) -> Any:
        note = notes / _identity(settings)
        if note.exists():
            return []
        findings = prove(learner, settings)
        if all(finding.holds is not False for finding in findings):  # what cannot be shown, no restart shows
            note.touch()
        return findings

    def check_and_note(learner: Any, settings: Settings) -> Iterator[CheckResult]:
        results = [*check(learner, settings)]
        # It proves for one process, also what is for a group.
        if settings.scale.workers == 1 and all(result.outcome is CheckOutcome.OK for result in results):
            (notes / _identity(settings)).touch()
        yield from results

    mock.patch.object(model_check, "_state_and_proof", check_and_note).start()
    for where in (service, group_service, pretrain, fork):
        mock.patch.object(where, "prove", unless_noted).start()


def command_that_proves_once(command: Sequence[str], notes: Path) -> list[str]:
    """Return a command of Python that runs `millrace` such that it goes by the notes as this process does."""
    code = command.index("-c") + 1
    prelude = f"from tests.faults.harness.proven import prove_once, Path; prove_once(Path({str(notes)!r})); "
    return [*command[:code], prelude + command[code], *command[code + 1 :]]


def _identity(settings: Settings) -> str:
    decides = settings.model_dump_json(include={**_DECIDES, "scale": {"workers"}})
    return hashlib.sha256(settings.model.build.file.read_bytes() + decides.encode()).hexdigest()
