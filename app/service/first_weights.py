"""The weights that a first start begins with, by the settings: found, matched, taken over. Imports TensorFlow."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millrace.app.service.carried_classes import PARTS, carry_classes
from millrace.app.settings import Settings
from millrace.app.settings.sections.model import InitialWeights
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.pipelines.shaping.appearing import AppearingClasses
from millrace.pipelines.shaping.shaper import Shaper
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import CorruptError, MissingCheckpointError
from millrace.training.model.learner import Learner
from millrace.training.model.weights.initial_weights import WeightTable, match, take_over
from millrace.training.model.weights.weight_files import FoundWeights, read_file
from millrace.training.model.weights.weights import PART

log = logging.getLogger(__name__)
_SETTING = "model.initial_weights"


def weight_table(settings: Settings, source: InitialWeights, learner: Learner) -> WeightTable:
    """Return what the model would take over; ConfigError where the weights are not there, or do not fit."""
    try:
        return match(learner.model, _found(settings, source))
    except MillraceError as error:
        if str(error).startswith(_SETTING):
            raise
        raise ConfigError(f"{_SETTING}: {error}") from error


def take_initial_weights(settings: Settings, learner: Learner, shapers: Sequence[Shaper] = ()) -> Mapping[str, Any]:
    """Give a model its first weights, where the settings name some; return what the provenance says of it.

    Of a checkpoint it takes the numbers of classes that have appeared, too: the weights are for these numbers.
    """
    source = settings.model.initial_weights
    if source is None:
        return {}
    table = weight_table(settings, source, learner)
    take_over(learner.model, table)
    if any(isinstance(one, AppearingClasses) for one in shapers) and (at := _checkpoint_of(settings, source)):
        carry_classes(settings, shapers, at.store.load(at.number, only=PARTS), at.what)
    log.info("initial weights from %s", table.summary())
    for line in table.lines():
        log.info("initial weights: %s", line)
    return {"initial_weights": table.facts()}


def log_ignored(settings: Settings, manifest: Manifest) -> None:
    """Say that the settings name weights of which a resume takes none."""
    if settings.model.initial_weights is not None and "initial_weights" not in manifest.provenance:
        log.info("%s is ignored: there is a checkpoint to resume from", _SETTING)


def checkpoint_weights(store: CheckpointStore, number: int, what: str) -> FoundWeights:
    """Return the weights of a checkpoint, verified as they are read."""
    try:
        arrays = store.load(number, only={PART})[PART].arrays
        raw = (store.folder.checkpoint(number) / FILE_NAME).read_bytes()
    except (CorruptError, FileNotFoundError):
        if number in store.folder.numbers():
            raise
        raise MissingCheckpointError(f"{what} was pruned while it was read: name a newer one") from None
    return FoundWeights(what=what, sha256=hashlib.sha256(raw).hexdigest(), arrays=arrays)


class _NamedCheckpoint(NamedTuple):
    """Where weights are."""

    store: CheckpointStore
    number: int
    what: str
    """What messages call it."""


def _found(settings: Settings, source: InitialWeights) -> FoundWeights:
    at = _checkpoint_of(settings, source)
    if at is not None:
        return checkpoint_weights(*at)
    assert source.path is not None, "it is a checkpoint or a file"
    return read_file(source.path)


def _checkpoint_of(settings: Settings, source: InitialWeights) -> _NamedCheckpoint | None:
    """Return the checkpoint that is named; None for a file."""
    if source.path is None:
        store = CheckpointStore(Folder(settings.checkpoints.path / source.name))
        number = source.number
        if number is None:
            newest = store.newest()
            if newest is None:
                raise MissingCheckpointError(f"{store.folder.root} holds no checkpoint: name another model")
            number = newest.number
        return _NamedCheckpoint(store, number, f"{source.name}@{number}")
    if source.path.is_dir():
        path = source.path
        folder = Folder(path.parents[1]) if path.name.isascii() and path.name.isdecimal() else None
        if folder is None or folder.checkpoint(int(path.name)) != path:
            raise ConfigError(
                f"{path} is no folder of a checkpoint; they are called as in clicks/checkpoints/0000000037"
            )
        return _NamedCheckpoint(CheckpointStore(folder), int(path.name), str(path))
    return None
