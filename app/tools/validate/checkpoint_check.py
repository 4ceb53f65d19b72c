"""The checks of the checkpoints' folder: writable, free, with room, and its newest checkpoint is of this model.

Takes no lock, and creates nothing but an unnamed temporary file, and a small file in the mirror, which it removes.
"""

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from millrace.app.service.checkpoint_policies import keep_policy, shortage
from millrace.app.service.first_weights import weight_table
from millrace.app.service.provenance import hyperparameter_options
from millrace.app.settings import Settings
from millrace.app.tools.validate.check import CheckOutcome, CheckResult, fail, ok, skip, warn
from millrace.app.tools.validate.kafka_check import Bounds
from millrace.consumers.errors import ConfigError, DataLossError, MillraceError
from millrace.consumers.records import Partition
from millrace.consumers.rounded import rounded_size
from millrace.training.checkpoints.files import require_space, unwritable
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import holder_of
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.mirror.mirror import Mirror
from millrace.training.checkpoints.mirror.target import target_at
from millrace.training.checkpoints.store import CheckpointStore, StoreOptions
from millrace.training.errors import CorruptError, FolderBusyError
from millrace.training.model.hyperparameters import UNKNOWN, Hyperparameters
from millrace.training.model.learner import Learner
from millrace.training.model.variables import VariablesPart


def folder_checks(settings: Settings, learner: Learner | None, bounds: Bounds | None) -> Iterator[CheckResult]:
    """Look at the folder of this name."""
    folder = Folder(settings.checkpoints.path / settings.name)
    yield _writable(folder)
    yield _free(folder)
    yield _space(settings, folder, learner)
    mirrored = None
    if settings.checkpoints.mirror is not None:
        check, mirrored = _mirror(settings.checkpoints.mirror, settings.name)
        yield check
    yield from _newest(settings, CheckpointStore(folder), learner, bounds, mirrored)


def checkpoint_check(settings: Settings, learner: Learner, number: int | None) -> CheckResult:
    """Check whether learning could resume from one checkpoint; from the newest where `number` is None."""
    store = CheckpointStore(Folder(settings.checkpoints.path / settings.name))
    try:
        manifest = store.newest() if number is None else _verified(store, number)
    except MillraceError as error:
        check = fail("checkpoint", error)
    else:
        if manifest is None:
            return ok("checkpoint", "none yet: the first start begins a history")
        check = _of_this_model(settings, store, manifest, learner)
    return replace(check, exit_code=DataLossError.exit_code) if check.outcome is CheckOutcome.FAIL else check


def _verified(store: CheckpointStore, number: int) -> Manifest:
    found = store.verify(number)
    if found.manifest is None or not found.verified:
        raise CorruptError(f"checkpoint {number} is {found.condition}: {'; '.join(found.problems)}; name another one")
    return found.manifest


def _writable(folder: Folder) -> CheckResult:
    there = _nearest(folder.checkpoints)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return fail("folder", ConfigError(unwritable(there, error)))
    return ok("folder", f"{folder.root} " + ("is writable" if there == folder.checkpoints else "can be made"))


def _nearest(path: Path) -> Path:
    """Return the path itself, or the nearest parent that exists."""
    return next(there for there in (path, *path.parents) if there.exists())


def _free(folder: Folder) -> CheckResult:
    holder = holder_of(folder)
    if holder is None:
        return ok("lock", "no process holds the folder")
    text = f"{folder.root} is held by {holder}: stop that trainer before you start one here"
    return fail("lock", FolderBusyError(text))


def _space(settings: Settings, folder: Folder, learner: Learner | None) -> CheckResult:
    if learner is None:
        return skip("space", "the size of the model's state is not known")
    try:
        return _room(settings, folder, learner.state_bytes)
    except MillraceError as error:
        return fail("space", error)
    except OSError as error:
        return fail("space", ConfigError(f"checkpoints.path: {error.strerror}; name another one"))


def _room(settings: Settings, folder: Folder, needed: int) -> CheckResult:
    if not folder.checkpoints.exists():
        require_space(_nearest(folder.checkpoints), needed)
        return ok("space", f"there is room for a checkpoint of {rounded_size(needed)}")
    store = CheckpointStore(folder, options=StoreOptions(keep=keep_policy(settings)))
    if store.room()[0] < needed:
        return fail("space", store.no_room(needed))
    if (short := shortage(settings, store, needed)) is not None:
        return warn("space", short)
    return ok("space", f"there is room for what checkpoints.keep keeps, of {rounded_size(needed)} each")


def _mirror(place: Path | str, name: str) -> tuple[CheckResult, int | None]:
    """Put a small file into the mirror, read it, and remove it; return the newest checkpoint that it has, too."""
    key, raw = f".validate-{uuid.uuid4().hex}", b"millrace validate"
    try:
        target = target_at(place, name)
        mirror = Mirror(target)
        mirror.look()
        target.put(key, raw)
        (found,) = target.read([key])
        target.remove([key])
        if found != raw:
            raise ConfigError(f"checkpoints.mirror: {target.path(key)} was put, and is not there: look at the store")
    except MillraceError as error:
        return fail("mirror", error), None
    except OSError as error:
        refused = ConfigError(f"checkpoints.mirror: {error}; name another one, or permit this user to write")
        return fail("mirror", refused), None
    newest = max((one.manifest.number for one in mirror.whole.values()), default=None)
    has = "has no checkpoint yet" if newest is None else f"has checkpoints up to {newest}"
    return ok("mirror", f"{target.path('').rstrip('/')} can be written to, and {has}"), newest


def _newest(
    settings: Settings, store: CheckpointStore, learner: Learner | None, bounds: Bounds | None, mirrored: int | None
) -> Iterator[CheckResult]:
    """Look at what a start would resume from: the folder's newest checkpoint, or the mirror's if there is none."""
    name = "checkpoint"
    try:
        newest = store.newest()
    except MillraceError as error:
        yield fail(name, error)
        return
    if newest is None and mirrored is None:
        yield _first_start(settings, bounds)
    elif newest is None:
        yield ok(name, f"none here: a start takes those of the mirror, and resumes from {mirrored}")
    yield from weights_checks(settings, learner, mirrored if newest is None else newest.number)
    if newest is None:
        return
    yield _of_this_model(settings, store, newest, learner)
    if bounds is not None:
        yield from _positions(settings, newest, bounds)


def _first_start(settings: Settings, bounds: Bounds | None) -> CheckResult:
    name, start = "checkpoint", settings.kafka.start
    if bounds is None:
        return ok(name, f"none yet: the first start begins at {start}")
    if isinstance(bounds.start, MillraceError):
        return fail(name, bounds.start)
    if isinstance(bounds.learnt_before, DataLossError):
        return fail(name, bounds.learnt_before)
    if bounds.learnt_before is not None:
        return warn(name, str(bounds.learnt_before))
    ahead = sum(max(0, bounds.end[partition] - offset) for partition, offset in bounds.start.items())
    return ok(name, f"none yet: the first start begins at {start}, with {ahead:,} offsets to learn")


def _of_this_model(
    settings: Settings, store: CheckpointStore, newest: Manifest, learner: Learner | None
) -> CheckResult:
    name = "checkpoint"
    if learner is None:
        return skip(name, f"there is no model to compare checkpoint {newest.number} with")
    variables = [part for part in learner.parts if isinstance(part, VariablesPart)]
    hyperparameters = Hyperparameters(learner.model, hyperparameter_options(settings))
    try:
        parts = {*(part.name for part in variables), hyperparameters.name}
        state = {**UNKNOWN, **store.load(newest.number, only=parts)}
        for part in variables:
            if part.name not in state:
                raise CorruptError(f"checkpoint {newest.number} lacks the part {part.name}; restore another one")
        hyperparameters.check(state)
        for part in variables:
            part.check(state[part.name])
    except MillraceError as error:
        return fail(name, error)
    if changes := hyperparameters.foreseen(state):
        return warn(name, f"resumes from {newest.number} with other hyperparameters: {'; '.join(map(str, changes))}")
    return ok(name, f"resumes from {newest.number} (step {newest.step:,}), which is from this model")


def _positions(settings: Settings, newest: Manifest, bounds: Bounds) -> Iterator[CheckResult]:
    """Check whether the offsets that come next are still in the topic."""
    name, behind = "positions", 0
    for text, position in newest.positions.items():
        partition = Partition.parse(text)
        if (complaint := _complaint(settings, partition, position, bounds)) is not None:
            yield complaint
            return
        behind += bounds.end[partition] - position
    yield ok(name, f"{behind:,} offsets are to be learnt")


def _complaint(settings: Settings, partition: Partition, position: int, bounds: Bounds) -> CheckResult | None:
    name, first, end = "positions", bounds.first.get(partition), bounds.end.get(partition)
    if first is None or end is None:
        text = f"{partition} no longer exists: was the topic recreated? Give the model a new name, or rewind"
        return fail(name, DataLossError(text))
    if position > end:
        text = (
            f"{partition} ends at offset {end}, yet {position} is the next to be read: the topic was truncated, or "
            "deleted and created again. Start afresh under another name, or rewind to an offset that it has"
        )
        return fail(name, DataLossError(text))
    if position >= first:
        return None
    lost = f"offsets {position}..{first - 1} of {partition} are gone by retention"
    if settings.kafka.out_of_range == "earliest":
        return warn(name, f"{lost} and will be counted as lost (kafka.out_of_range: earliest)")
    text = f"{lost}: set kafka.out_of_range: earliest to continue and count the gap, or rewind"
    return fail(name, DataLossError(text))


def weights_checks(settings: Settings, learner: Learner | None, resumes_from: int | None) -> Iterator[CheckResult]:
    """Compare the model with model.initial_weights, where that is set; a resume takes none of them."""
    source = settings.model.initial_weights
    if source is None:
        return
    if resumes_from is not None:
        yield ok("initial weights", f"{source} is ignored, as the next start resumes from checkpoint {resumes_from}")
        return
    if learner is None:
        yield skip("initial weights", "there is no model to compare them with")
        return
    try:
        table = weight_table(settings, source, learner)
    except MillraceError as error:
        yield fail("initial weights", error)
        return
    found = "; ".join([table.summary(), *table.lines()])
    yield warn("initial weights", found) if table.by_order else ok("initial weights", found)
