"""The events of a service's start and end: what it resumes from, what is new since then, and why it ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace.consumers.errors import first_clause
from millrace.training.checkpoints.manifest import Manifest, SaveReason
from millrace.training.model.setup.model_code import is_code_of
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity

_OF_INTEREST: Mapping[str, str] = {
    "config_sha256": "the config",
    "model_sha256": "model.py",
    "format_sha256": "the format",
    "millrace": "millrace",
}


def tell_started(tell: ReportEvent, manifest: Manifest, now: Mapping[str, Any], model: Path) -> None:
    """Tell which checkpoint the service resumes from and what changed; `now` is this process's provenance."""
    then = manifest.provenance
    if manifest.reason != SaveReason.START or manifest.step:
        how = "Started again, and resumed from"
    elif (fork := then.get("forked_from")) is not None:
        how = f"Began as a fork of {fork['name']}@{fork['number']}, with"
    elif (weights := then.get("initial_weights")) is not None:
        how = f"Began with the weights of {weights['source']} ({weights['kept']} kept, {len(weights['new'])} new), as"
    else:
        how = "Began with new weights, as"
    tell(EventKind.STARTED, f"{how} checkpoint {manifest.number}.", number=manifest.number, step=manifest.step)
    same = {key for key in _OF_INTEREST if key not in then or then[key] == now.get(key)}
    if is_code_of(model, then.get("model_sha256", "")):
        same.add("model_sha256")
    changed = [name for key, name in _OF_INTEREST.items() if key not in same]
    if changed:
        text = f"Changed since checkpoint {manifest.number}: {', '.join(changed)}."
        tell(EventKind.NEW_CODE, text, number=manifest.number, changed=changed)


def tell_ended(tell: ReportEvent, error: BaseException | None) -> None:
    """Tell that the training has ended, and why; what to do about it is in the problem and the log."""
    if error is None:
        tell(EventKind.ENDED, "Ended: what was learnt is saved.")
    else:
        why = str(error) or type(error).__name__
        tell(EventKind.FAILED, f"The training ended: {first_clause(why)}.", Severity.ERROR, error=why)
