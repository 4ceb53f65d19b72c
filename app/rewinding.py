"""Rewinding from the command line: by the trainer where one runs, else here, with a trainer's rights.

An order that is given while nobody runs takes the folder for a moment, as a trainer would, so the two exclude each
other; the next start finds the order as the newest checkpoint.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.api.checkpoints import just_published
from app.remote import RunningTrainer
from app.retention import keep_policy
from app.settings import Settings
from consumers.errors import MillraceError
from training.checkpoints.folder import Folder
from training.checkpoints.holder import holder_of
from training.checkpoints.lease import Writer
from training.checkpoints.store import CheckpointStore, StoreOptions
from training.commands import Rewind
from training.rewinding import last_ordered, plan_rewind, publish_rewind

_WAIT_S = 600


def order_rewind(settings: Settings, command: Rewind, skip: list[str], *, dry_run: bool) -> Mapping[str, Any]:
    """Have the rewind done, or planned; the answer has the shape of `POST /rewind`."""
    folder = Folder(settings.checkpoints.path / settings.name)
    if (holder := holder_of(folder)) is not None:
        body = {"to": command.to, "skip": skip, "reason": command.note, "dry_run": dry_run}
        return _asked(RunningTrainer(settings, holder), body)
    plan = plan_rewind(CheckpointStore(folder), command)
    if dry_run:
        return {
            "to": command.to,
            "replayed": sum(replay.replayed for replay in plan.values()),
            "skipped": sum(replay.skipped for replay in plan.values()),
            "partitions": {str(partition): asdict(replay) for partition, replay in plan.items()},
        }
    writer = Writer.acquire(folder, f"millrace rewind {settings.name}")
    try:
        store = CheckpointStore(folder, writer, StoreOptions(keep=keep_policy(settings)))
        last = last_ordered(store)
        manifest = publish_rewind(store, command, incarnation=0 if last is None else last.incarnation)
    finally:
        writer.release()
    return {"checkpoint": just_published(manifest).model_dump(exclude_none=True)}


def _asked(trainer: RunningTrainer, body: Mapping[str, Any]) -> Mapping[str, Any]:
    answer = trainer.ask("POST", f"/rewind?wait={_WAIT_S}s", body, within_s=_WAIT_S + 30)
    if "operation" in answer:
        raise MillraceError(
            f"the trainer was at it for longer than {_WAIT_S} s; GET /operations/{answer['operation']['id']} tells how "
            "it stands"
        )
    return answer
