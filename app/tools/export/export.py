"""Making a version: from a durable checkpoint, in a process of its own at low priority, so that no call waits for it.

Takes no lock of the checkpoints, so a trainer may run meanwhile; holds that of the folder of exports. (1) the
checkpoint, every byte verified, (2) the model with its weights, (3) the SavedModel under a temporary name, (4) the
proof: a fresh process answers the last records as the model does; (3) and (4) again for each further format, (5)
publishing, (6) pruning.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import tensorflow as tf

from millrace.app.settings import Loaded, Settings
from millrace.app.settings.exported_records import write_exported_records
from millrace.app.tools.export.child_process import answers_of, run_module
from millrace.app.tools.export.export_inputs import (
    LEDGER,
    checkpoint_to_export,
    records_to_prove,
    schema_sha256,
    served_model,
)
from millrace.app.tools.export.exported_memory import write_exported_memory
from millrace.app.version import version, version_of
from millrace.consumers.durable_files import full_disk_in
from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.records import Partition
from millrace.training.checkpoints.exports.served_markers import served_versions
from millrace.training.checkpoints.exports.version_folder import (
    ExportDraft,
    ExportManifest,
    ExportMemory,
    ExportProof,
    ExportSource,
    VersionFolder,
)
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.pins import Pins
from millrace.training.errors import ExportRefusedError, MissingCheckpointError, ReadOnlyError, gist
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.export.answers import difference, differing, raw_columns, tolerance_of
from millrace.training.model.export.export_reference import expected_answers, features_that_differ
from millrace.training.model.export.export_writer import ExportWriter, WritableModel
from millrace.training.model.export.served_module import ServedModel, ServedModule
from millrace.training.model.export.writers import ONNX, SAVED_MODEL, WRITERS, require_all, writer_of
from millrace.training.model.setup.model_code import model_sha256
from millrace.training.model.setup.model_file import user_modules

_WAIT_S = 30.0
"""How long another export of the same model may take before this one gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A version that is there."""

    manifest: ExportManifest
    folder: Path
    seconds: float
    already: bool = False
    """Whether it was there before."""
    pinned: bool = True
    """Whether its checkpoint stays as long as it does; False where the checkpoints can only be read."""


def compute_on_one_thread() -> None:
    """Have TensorFlow compute on one thread, so that a trainer beside this process keeps the other cores."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def export_checkpoint(
    loaded: Loaded,
    number: int | None,
    folder: VersionFolder,
) -> Exported:
    """Make a version of a checkpoint, of the newest for None; return when it is durable.

    What is served is not pruned, and the checkpoint of a version stays as long as the version.
    """
    began = time.monotonic()
    settings = loaded.settings
    require_all(settings.export.writers.values())
    checkpoint = checkpoint_to_export(settings, number)  # (1)
    number = checkpoint.manifest.number
    with folder.writing(_WAIT_S):
        if number in folder.numbers():
            return Exported(manifest=folder.manifest(number), folder=folder.version(number), seconds=0.0, already=True)
        pins = Pins(Folder(settings.checkpoints.path / settings.name))
        pinned = _pin(pins, number, folder)
        source = _source(settings, checkpoint.manifest)  # read now: one that is not pinned may be pruned meanwhile
        written = folder.draft_folder(number)
        try:
            served = served_model(settings, checkpoint)  # (2)
            failpoint("export.before_save")
            with _full_disk_told(folder, number):
                draft = _write_and_prove(settings, checkpoint, served, written, source)
            failpoint("export.after_proof")
            manifest = folder.publish(written, draft)  # (5)
            folder.prune(settings.export.keep, {number, *served_versions(folder.root)})  # (6)
        finally:
            shutil.rmtree(written, ignore_errors=True)
            _lift_pins(pins, folder)
    seconds = time.monotonic() - began
    return Exported(manifest=manifest, folder=folder.version(number), seconds=seconds, pinned=pinned)


def _pin(pins: Pins, number: int, folder: VersionFolder) -> bool:
    """Keep the checkpoint as long as its version; return False where the checkpoints can only be read."""
    try:
        pins.pin(number, folder.holder)
    except ReadOnlyError:
        return False
    return True


def _source(settings: Settings, manifest: Manifest) -> ExportSource:
    """Return the checkpoint as the manifest of a version names it."""
    number, folder = manifest.number, Folder(settings.checkpoints.path / settings.name)
    try:
        sealed = sha256((folder.checkpoint(number) / FILE_NAME).read_bytes()).hexdigest()
    except FileNotFoundError:
        raise MissingCheckpointError(f"checkpoint {number} was pruned while it was read: export a newer one") from None
    return ExportSource(number=number, incarnation=manifest.incarnation, parent=manifest.parent, sha256=sealed)


@contextmanager
def _full_disk_told(folder: VersionFolder, number: int) -> Iterator[None]:
    """Tell of a full disk as publishing does, whoever met it: TensorFlow, or a process that was asked to write."""
    try:
        yield
    except (OSError, tf.errors.ResourceExhaustedError) as error:
        if (full := full_disk_in(str(error))) is None:
            raise
        raise folder.not_written(number, full) from error


def _lift_pins(pins: Pins, folder: VersionFolder) -> None:
    """Let the checkpoints go whose versions are gone."""
    there = {*folder.numbers()}
    with suppress(ReadOnlyError):  # the next export by whoever may write there lifts them
        for pin in pins.all():
            if pin.by == folder.holder and pin.number not in there:
                pins.unpin(pin.number, pin.by)


def _write_and_prove(
    settings: Settings, checkpoint: VerifiedCheckpoint, served: ServedModel, written: Path, source: ExportSource
) -> ExportDraft:
    module = ServedModule(served)
    model = WritableModel(module=module, user_code=user_modules(), run=run_module)
    writers = {name: writer_of(place) for name, place in {SAVED_MODEL: SAVED_MODEL, **settings.export.writers}.items()}
    # The SavedModel first: converters read it, and its proof shows that what goes in is the same. All are written
    # before any is proven, so that what one writer does to another's files is seen.
    writers[SAVED_MODEL].write(model, written)  # (3)
    for name, writer in writers.items():
        if name != SAVED_MODEL:
            _write(writer, name, model, written)  # (3)
    write_exported_records(settings, written)
    ledger = Ledger()
    ledger.restore(checkpoint.parts[LEDGER])
    memory = write_exported_memory(settings, checkpoint, ledger.skips, written)
    proven_on = records_to_prove(settings, checkpoint.manifest, served)
    answers = expected_answers(served, proven_on.probe)
    raw = raw_columns(served.schema, proven_on.probe.features)
    proofs: dict[str, ExportProof] = {}
    for name, writer in writers.items():
        (theirs,) = answers_of(settings.export.writers.get(name, name), writer, [raw], written)  # (4)
        if found := differing(answers, theirs, writer.rounding):
            output, apart = max(found.items(), key=lambda one: one[1])
            if name == SAVED_MODEL:
                features = features_that_differ(served, module, proven_on.probe)
                why = f"the output {output!r} differs from the model's by up to {apart:.3g}; " + (
                    f"preprocess gives it another {', '.join(features)} than in training"
                    if features
                    else "no feature differs, so a layer draws random numbers, or keeps something besides its weights"
                )
            else:
                why = (
                    f"{writer.title or name} answers the output {output!r}{writer.written and f' of {writer.written}'} "
                    f"otherwise than the model, by up to {apart:.3g}{writer.refused and f'; {writer.refused}'}"
                )
            raise ExportRefusedError(f"it is not published: over {proven_on.rows} records ({proven_on.records}) {why}")
        proofs[name] = ExportProof(
            rows=proven_on.rows,
            records=proven_on.records,
            max_difference=max((difference(answers[each], theirs[each]) for each in answers), default=0.0),
            tolerance=tolerance_of(answers.values(), writer.rounding),
        )
    return _draft(settings, checkpoint, ledger, source, module, proofs, memory)


def _write(writer: ExportWriter, name: str, model: WritableModel, folder: Path) -> None:
    """Have a writer write; what the user's raises is refused in one line."""
    try:
        writer.write(model, folder)
    except MillraceError:
        raise
    except (Exception, SystemExit) as error:
        full = isinstance(error, OSError | tf.errors.ResourceExhaustedError) and full_disk_in(str(error))
        if name in WRITERS or full:
            raise
        raise ExportRefusedError(f"it is not published: {name} cannot write it: {gist(error)}") from error


def _draft(
    settings: Settings,
    checkpoint: VerifiedCheckpoint,
    ledger: Ledger,
    source: ExportSource,
    module: ServedModule,
    proofs: Mapping[str, ExportProof],
    memory: ExportMemory | None,
) -> ExportDraft:
    manifest = checkpoint.manifest
    return ExportDraft(
        name=settings.name,
        number=manifest.number,
        made_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        checkpoint=source,
        positions=_by_topic(manifest),
        records=sum(ledger.learnt().values()),
        metrics=manifest.scores,
        inputs=module.inputs(),
        outputs=module.outputs(),
        classes=module.classes(),
        config_sha256=str(manifest.provenance.get("config_sha256", "")),
        model_sha256=model_sha256(settings.model.build.file),
        schema_sha256=schema_sha256(settings),
        millrace=version(),
        tensorflow=version_of("tensorflow"),
        keras=version_of("keras"),
        proof=proofs[SAVED_MODEL],
        onnx=proofs.get(ONNX),
        formats={name: proof for name, proof in proofs.items() if name not in WRITERS},
        memory=memory,
    )


def _by_topic(manifest: Manifest) -> dict[str, dict[str, int]]:
    positions: dict[str, dict[str, int]] = {}
    for name, offset in manifest.positions.items():
        partition = Partition.parse(name)
        positions.setdefault(partition.topic, {})[str(partition.number)] = offset
    return positions
