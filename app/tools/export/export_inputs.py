"""What an export is made of: the checkpoint's state, the user's model with it, and records to prove it on."""

import hashlib
import json
from dataclasses import dataclass

from millrace.app.service.kept_sample import RecordSamples
from millrace.app.service.model_setup import load_model
from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.app.settings.secret_files import masked
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.consumers.suggested_command import suggested_command
from millrace.pipelines.shaping import OTHER_COLUMNS
from millrace.pipelines.shaping.appearing import NAME as CLASSES
from millrace.pipelines.shaping.appearing import with_classes
from millrace.pipelines.shaping.windows.windows import NAME as WINDOWS
from millrace.pipelines.stream.record_sample import RecordSample
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import MissingCheckpointError, ModelError
from millrace.training.model.call.class_balance import NAME as SHAPING
from millrace.training.model.call.running_scale import NAME as SCALE
from millrace.training.model.call.running_scale import with_constants
from millrace.training.model.export.export_reference import correction_of, expected_answers
from millrace.training.model.export.served_module import ServedModel, require_servable
from millrace.training.model.probes import Probe, ProbeRows
from millrace.training.model.setup.model_code import is_code_of, named
from millrace.training.model.weights.weights import PART, model_with_weights

ROWS = 256
"""Records that an export is proven on."""
LEDGER = "ledger"
_CONNECT_S, _STOP_S = 5.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenOn:
    """The records that an export is proven on."""

    probe: Probe
    rows: int
    records: str
    """Where they came from, as the manifest says it."""


def checkpoint_to_export(settings: Settings, number: int | None) -> VerifiedCheckpoint:
    """Return a checkpoint, every byte of it verified; None takes the one that a start would resume from."""
    store = CheckpointStore(Folder(settings.checkpoints.path / settings.name))
    if number is None:
        newest = store.newest()
        if newest is None:
            raise MissingCheckpointError("there are no checkpoints yet; a first start makes number 0")
        if not newest.has_learnt:
            raise MissingCheckpointError(
                f"checkpoint {newest.number}, the latest, has learnt nothing: wait for the next one, or name it, as in "
                f"`{suggested_command('export', str(newest.number))}`"
            )
        number = newest.number
    return store.load_verified(number, keep=(PART, SHAPING, SCALE, LEDGER, CLASSES, WINDOWS))


def served_model(settings: Settings, checkpoint: VerifiedCheckpoint) -> ServedModel:
    """Return the user's model with the weights of a checkpoint; ModelError where its code is no longer the same."""
    appeared = checkpoint.parts.get(CLASSES)
    schema = with_classes(settings.block_schema, {} if appeared is None else appeared.facts)
    require_servable(schema)
    _require_same_code(settings, checkpoint.manifest)
    functions = load_model(settings)
    kept = RecordSamples(settings, Folder(settings.checkpoints.path / settings.name)).kept
    model = model_with_weights(functions, schema, checkpoint.parts[PART], (kept,))
    corrected = correction_of(model, settings.balance.for_rows(settings.row_schema), checkpoint.parts.get(SHAPING))
    preprocess = with_constants(functions.preprocess, schema, checkpoint.parts.get(SCALE))
    return ServedModel(model=model, schema=schema, preprocess=preprocess, corrected=corrected)


def records_to_prove(settings: Settings, manifest: Manifest, served: ServedModel) -> ProvenOn:
    """Return the last records before the checkpoint, or the kept ones, or made-up ones, on which the model runs."""
    samples = RecordSamples(settings, Folder(settings.checkpoints.path / settings.name))
    asked: list[str] = []

    def last() -> RecordSample | None:
        asked.append("last")
        return _last_records(settings, samples, manifest)

    def kept() -> RecordSample | None:
        asked.append("kept")
        return samples.kept()

    rows = ProbeRows(served.schema, ROWS, (last, kept))
    rows.require(lambda probe: expected_answers(served, probe))
    if rows.sample is None:
        return ProvenOn(probe=rows.batch(), rows=ROWS, records="made up")
    probe = Probe(features=rows.sample.features, labels=rows.sample.labels)
    return ProvenOn(probe=probe, rows=len(rows.sample), records=asked[-1])


def schema_sha256(settings: Settings) -> str:
    """Return the hash of what the settings say about records and rows."""
    shown = masked(settings.model_dump(mode="json"))
    body = json.dumps({name: shown[name] for name in ("records", *OTHER_COLUMNS)}, sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()


def _require_same_code(settings: Settings, manifest: Manifest) -> None:
    """Raise ModelError where the model file is not the one that learnt: its `preprocess` would be another's."""
    then = manifest.provenance.get("model_sha256")
    file = settings.model.build.file
    if then is not None and not is_code_of(file, then):
        raise ModelError(
            f"model.build: {named(file)} is not the file that checkpoint {manifest.number} was "
            f"learnt by (SHA-256 {str(then)[:12]}): bring that one back, or export one that this one has learnt"
        )


def _last_records(settings: Settings, samples: RecordSamples, manifest: Manifest) -> RecordSample | None:
    """Read the last records before the checkpoint's positions; None where Kafka does not give them."""
    positions = {Partition.parse(name): offset for name, offset in manifest.positions.items()}
    if not any(positions.values()):
        return None
    try:
        source = KafkaSource(kafka_options(settings.kafka), kafka_history(settings))
        source.start(_CONNECT_S)
        try:
            return samples.before(source, positions)
        finally:
            source.stop(_STOP_S)
    except MillraceError:
        return None
