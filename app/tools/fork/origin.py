"""What a fork comes from: the checkpoint, verified, and the settings of the new model, checked against it.

Reads only; TensorFlow is not needed. What would mix the two models up is refused here, before anything is built.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.app.settings import Loaded, Settings, load
from millrace.app.settings.sections.model import CHECKPOINT
from millrace.consumers.errors import ConfigError, DataLossError
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.inspection import Condition
from millrace.training.checkpoints.manifest import FILE_NAME
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import MissingCheckpointError
from millrace.training.ledger.interventions import Interventions

_GIVEN_HERE = "rewind-"
"""How the names of skips begin that were given to the model itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrigin:
    """The checkpoint that a fork begins with."""

    name: str
    checkpoint: VerifiedCheckpoint
    sha256: str
    """Of its manifest."""
    folder: Folder

    @property
    def number(self) -> int:
        """Its number."""
        return self.checkpoint.manifest.number

    def part(self, name: str) -> PartState:
        """Return one of its parts; an empty one where it has none of that name."""
        return self.checkpoint.parts.get(name, PartState())


def parsed(text: str) -> tuple[str, int | None]:
    """Return the name and the number of NAME@N; None stands for the newest."""
    match = CHECKPOINT.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no checkpoint; write NAME@NUMBER, as in clicks@37, or clicks@latest")
    return match[1], None if match[2] == "latest" else int(match[2])


def loaded_as(path: Path, old: str, new: str) -> Loaded:
    """Load the config of the new model; one that describes the old model is read under the new name."""
    if new == old:
        raise ConfigError(f"--as {new}: this is the name of the model that is forked; give another one")
    found = load(path)
    if found.settings.name == new:
        groups = {f"millrace-{old}"}
    elif found.settings.name == old:
        groups, found = {found.settings.kafka.group}, load(path, name=new)
    else:
        raise ConfigError(f"{path} describes the model {found.settings.name}, and neither {new} nor {old}")
    _require_other_group(found.settings, groups, old)
    return found


def find_origin(settings: Settings, name: str, number: int | None) -> ForkOrigin:
    """Read and verify the checkpoint; raise where it is not there, or is not of the topics of the settings."""
    folder = Folder(settings.checkpoints.path / name)
    store = CheckpointStore(folder)
    if number is None:
        newest = store.newest()
        if newest is None:
            raise MissingCheckpointError(f"{folder.root} holds no checkpoint of {name}: there is nothing to fork")
        number = newest.number
    checkpoint = store.load_verified(number)
    made = checkpoint.manifest.provenance
    try:
        digest = hashlib.sha256((folder.checkpoint(number) / FILE_NAME).read_bytes()).hexdigest()
    except FileNotFoundError:
        raise MissingCheckpointError(f"{name}@{number} was pruned while it was read: fork a newer one") from None
    topics, ours = made.get("topics", []), settings.kafka.topics
    if set(topics) != set(ours):
        raise ConfigError(
            f"kafka.topics: {name}@{number} has learnt from {', '.join(topics)}, and this config names "
            f"{', '.join(ours)}: a fork goes on with the same topics; for others begin with model.initial_weights"
        )
    _require_other_group(settings, {made.get("group")}, name)
    return ForkOrigin(name=name, checkpoint=checkpoint, sha256=digest, folder=folder)


def require_unused(store: CheckpointStore) -> None:
    """Raise DataLossError where there are checkpoints under the new name."""
    there = [one for one in store.listing() if one.number is not None and one.condition is not Condition.FENCED]
    if there:
        raise DataLossError(
            f"{store.folder.checkpoints} holds {len(there)} checkpoints already, and a fork begins with number 0: "
            "give it another name by --as, or another checkpoints.path"
        )


def inherited_ledger(origin: ForkOrigin, ledger: PartState) -> PartState:
    """Return the ledger of the checkpoint, with its skips under names that the fork cannot give itself."""
    facts = dict(ledger.facts)
    facts["partitions"] = {
        partition: {**account, "skipped": {_renamed(origin, key): n for key, n in account.get("skipped", {}).items()}}
        for partition, account in facts["partitions"].items()
    }
    facts |= _orders(origin, ledger.facts).facts()
    return PartState(facts=facts)


def standing_skips(origin: ForkOrigin, ledger: PartState) -> Interventions:
    """Return the skips that hold for the present topics, for a ledger that begins anew."""
    topics = {name: len(account.get("former", ())) for name, account in ledger.facts["partitions"].items()}
    orders = _orders(origin, ledger.facts)
    kept = (skip for skip in orders.skips if skip.topic == topics.get(str(skip.partition), 0))
    return replace(orders, skips=tuple(replace(skip, topic=0) for skip in kept))


def _orders(origin: ForkOrigin, facts: Mapping[str, Any]) -> Interventions:
    orders = Interventions.of_facts(facts)
    skips = (replace(skip, order=_renamed(origin, skip.order), number=None) for skip in orders.skips)
    return Interventions(skips=tuple(skips))


def _renamed(origin: ForkOrigin, order: str) -> str:
    return f"{origin.name}-{order}" if order.startswith(_GIVEN_HERE) else order


def _require_other_group(settings: Settings, groups: set[Any], old: str) -> None:
    if settings.kafka.group in groups:
        raise ConfigError(
            f"kafka.group: {settings.kafka.group} is the group of {old}, and two models of one group would overwrite "
            "each other's committed offsets: leave it out, or name another one"
        )
