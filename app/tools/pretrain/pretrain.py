"""Pretraining from start to end: the folder, the positions, the model and its proof, the epochs, checkpoint 0.

Holds the lock of the checkpoints' folder for as long as it lasts, so that no trainer starts meanwhile. Whatever ends
it before the last step leaves no checkpoint: (1) the lock, (2) no checkpoint is there, (3) the positions, (4) the model
and its proof, (5) the epochs, (6) checkpoint 0, as durable as any.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from millrace.app.service.checkpoint_policies import keep_policy, remove_some, save_policy
from millrace.app.service.first_weights import take_initial_weights
from millrace.app.service.kept_sample import RecordSamples, rows_of
from millrace.app.service.model_setup import build_learner, golden_of, golden_records_of, live_metrics_of, prove
from millrace.app.service.provenance import hyperparameter_options, provenance_of
from millrace.app.settings import Loaded, Settings
from millrace.app.settings.connection import kafka_options
from millrace.app.tools.pretrain.bottleneck import InputProfile
from millrace.app.tools.pretrain.inputs import (
    InputOptions,
    reader_of,
    served,
    training_blocks,
    validation_blocks,
)
from millrace.app.tools.pretrain.row_cache import cache_folder, kept_rows, made_of
from millrace.app.tools.pretrain.shard_sources import ShardSource, TopicRange, at_hand, split
from millrace.consumers.errors import ConfigError, DataLossError
from millrace.consumers.kafka.positions import Offsets
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.consumers.section import SettingError
from millrace.pipelines.files.service_dataset import ServiceJob
from millrace.pipelines.files.shard_files import RowChains, ShardChain, ShardReader
from millrace.pipelines.files.visits import Refusals
from millrace.pipelines.shaping.shaper import Shaper
from millrace.pipelines.stream.record_sample import RecordSample, sample_of
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.inspection import Condition
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.store import CheckpointStore, StoreOptions
from millrace.training.checkpoints.writer import CheckpointWriter
from millrace.training.errors import ModelError
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.golden.golden_records import GoldenRecords
from millrace.training.model.golden.golden_set import scoring
from millrace.training.model.learner import Learner
from millrace.training.model.setup.model_file import MODULE_NAME
from millrace.training.pretraining.epochs import (
    Epoch,
    EpochProgress,
    EventFiles,
    Pretrained,
    Pretraining,
    PretrainingOptions,
)
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.trainer.saving import Saving, SavingOptions

_CONNECT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainOptions:
    """What the command line says."""

    epochs: int = 1
    validation: float | None = None
    """The share of the rows; None takes a tenth where that can be."""
    patience: int | None = None
    inputs: InputOptions = field(default_factory=InputOptions)
    tensorboard: Path | None = None
    profile: Path | None = None
    """The folder for a trace of some calls; None takes none."""
    callbacks: str | None = None
    """The function of the model's file that returns Keras callbacks."""
    service: ServiceJob | None = None
    """The tf.data service whose workers read what is trained on; None reads it here."""
    position: Offsets | None = None
    """Where the live training is to begin; None asks the archive, or Kafka by `kafka.start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A pretrained model that is durable."""

    manifest: Manifest
    pretrained: Pretrained


class PretrainReport(EpochProgress, Protocol):
    """Hears what is about to be trained on, too."""

    def dealt(self, training: ShardSource, validation: ShardSource | None, golden: GoldenRecords | None = None) -> None:
        """Hear which shards are trained and validated on; without the latter it is on the golden set, if any."""
        ...

    def say(self, line: str) -> None:
        """Hear where rows come from that an earlier run has kept, or why they are not used."""
        ...


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Where the live training will begin."""

    positions: Mapping[Partition, int]
    cluster: str | None
    """The cluster's id, where Kafka was asked."""


def pretrain(
    loaded: Loaded, source: ShardSource | TopicRange, options: PretrainOptions, report: PretrainReport
) -> Result:
    """Train on the source, and publish checkpoint 0; raise MillraceError where either cannot be done."""
    settings = loaded.settings
    _require_chief(settings)
    require_order(settings, source, options.position, served=options.service is not None)
    folder = cache_folder(options.inputs)
    with _taken(settings) as (lease, store), at_hand(source, settings, lease.folder.root / "range") as shards:  # (1, 2)
        records = golden_records_of(settings)
        share = 0.0 if records is not None and options.validation is None else options.validation
        training, validation = split(shards, share, whole_shards=options.service is not None)
        shaped = shaped_reading(settings, training, validation, shards.positions)
        beginning = _beginning(settings, shards, options.position)  # (3)
        report.dealt(training, validation, records)
        refusals = Refusals()
        local = reader_of(training, settings, refusals, shaped.training)
        learner = _learner(settings, lease.folder, local)  # (4)
        golden = golden_of(learner, records)
        told = {**take_initial_weights(settings, learner)}
        store.require_room(learner.state_bytes)
        live = live_metrics_of(learner, settings)
        reader: ShardReader = local
        if options.service is not None:
            reader = served(local, training, settings, options.service, learner.preprocess, refusals)
        blocks = training_blocks(reader, training, settings, options.inputs, learner.preprocess)
        profile = None
        if options.profile is not None:
            blocks.times = local.times
            profile = InputProfile(options.profile, local.times, report.say)
        facts = partial(made_of, training, validation, settings, options.inputs, learner.preprocess)
        with kept_rows(folder, facts, refusals, report.say) as ended:
            pretrained = Pretraining(
                learner,
                training.shards,
                blocks,
                golden
                if validation is None
                else validation_blocks(validation, settings, options.inputs, learner.preprocess, shaped.validation),
                refusals,
                _loop_options(options, live, ended, profile, validated=golden is not None or validation is not None),
                training.damaged,
            ).run(report)  # (5)
        told["pretrained"] = _provenance(training, validation, pretrained, records)
        # (6) The state is number 0 of a history that has learnt no offset yet.
        saving = Saving(
            store,
            CheckpointWriter(store),
            learner,
            Ledger(),
            live,
            SavingOptions(
                policy=save_policy(settings),
                provenance={**provenance_of(loaded, beginning.cluster), **told},
                hyperparameters=hyperparameter_options(settings),
                clock=time.monotonic,
                shapers=shaped.states,
                golden=scoring(golden),
            ),
        )
        manifest = saving.begin_or_restore(lambda: beginning.positions, start_over=False)
        saving.finish()
    return Result(manifest=manifest, pretrained=pretrained)


def _require_chief(settings: Settings) -> None:
    """Raise ConfigError on a host that is a worker of a group and not its chief, who alone has the checkpoints."""
    if settings.scale.workers == 1:
        return
    try:
        index = settings.scale.own_index()
    except SettingError:  # a host outside of the group, with the chief's folder or one of its own
        return
    if index:
        raise ConfigError(
            f"scale.index: this is worker {index} of a group, and one process pretrains, with the chief's checkpoints: "
            "run it where the chief runs, or with MILLRACE_SCALE__WORKERS=1"
        )


@contextmanager
def _taken(settings: Settings) -> Iterator[tuple[FolderLease, CheckpointStore]]:
    """Hold the folder of the checkpoints, in which there must be none."""
    lease = FolderLease.acquire(
        Folder(settings.checkpoints.path / settings.name),
        f"millrace pretrain {settings.name}",
        make_room=partial(remove_some, settings),
    )
    try:
        store = CheckpointStore(lease.folder, lease, StoreOptions(keep=keep_policy(settings)))
        _require_empty(store)
        yield lease, store
    finally:
        lease.release()


def _require_empty(store: CheckpointStore) -> None:
    there = [one for one in store.listing() if one.number is not None and one.condition is not Condition.FENCED]
    if there:
        raise DataLossError(
            f"{store.folder.checkpoints} holds {len(there)} checkpoints already, and a pretrained model begins with "
            "number 0: give it another name, or another checkpoints.path"
        )


def _beginning(settings: Settings, source: ShardSource, given: Offsets | None) -> _Beginning:
    """Return the offsets from which the model will learn live: as they were before the first epoch."""
    if given is not None:
        strange = [partition for partition in given.offsets if partition.topic not in settings.kafka.topics]
        if strange:
            raise ConfigError(f"--position: {strange[0]} is of no topic in kafka.topics")
        return _Beginning(given.offsets, None)
    if source.positions is not None:
        return _Beginning(source.positions, None)
    kafka = KafkaSource(kafka_options(settings.kafka))
    kafka.start(_CONNECT_S)
    try:
        return _Beginning(kafka.resolve_start(settings.kafka.start_position), kafka.cluster_id())
    finally:
        kafka.stop(_CONNECT_S)


def _learner(settings: Settings, folder: Folder, reader: ShardReader) -> Learner:
    samples = RecordSamples(settings, folder)

    def sample() -> RecordSample | None:
        first = reader.first()
        return samples.keep(None if first is None else sample_of(rows_of([first], settings), samples.rows))

    learner = build_learner(settings, (sample,), replay=False)
    prove(learner, settings)
    return learner


def _loop_options(
    options: PretrainOptions,
    live: LiveMetrics,
    ended: Callable[[Epoch], None],
    profile: InputProfile | None,
    *,
    validated: bool,
) -> PretrainingOptions:
    """Judge by the loss of the validation; where the model has none, by the watched metric."""
    watched = live.look().watch
    prefix = "val_" if validated else ""
    found: list[Any] = [] if profile is None else [profile]
    if options.callbacks is not None:
        make = getattr(sys.modules[MODULE_NAME], options.callbacks, None)
        if not callable(make):
            raise ModelError(f"--callbacks: the model's file has no function {options.callbacks!r}")
        found += make()
    if options.tensorboard is not None:
        found.append(EventFiles(options.tensorboard))
    return PretrainingOptions(
        epochs=options.epochs,
        patience=options.patience,
        watch=(f"{prefix}loss", f"{prefix}{watched.name}"),
        higher_is_better=(False, watched.higher_is_better),
        callbacks=found,
        ended=ended,
    )


def _provenance(
    training: ShardSource, validation: ShardSource | None, pretrained: Pretrained, golden: GoldenRecords | None
) -> dict[str, Any]:
    """Return what the manifest says of the pretraining: numbers and names of files, no value of a record."""
    best = next(epoch for epoch in pretrained.epochs if epoch.number == pretrained.best)
    return {
        "source": training.what,
        "shards": len(training.shards),
        "rows": training.rows,
        "validation_shards": 0 if validation is None else len(validation.shards),
        "validation_rows": judging.rows if (judging := validation or golden) is not None else 0,
        "epochs": len(pretrained.epochs),
        "epoch": pretrained.best,
        "steps": pretrained.steps,
        "visited": best.visited.visited,
        "twice": best.visited.twice,
        **({"damaged": {file.name: file.rows for file in training.damaged}} if training.damaged else {}),
        "set_aside": {str(reason): count for reason, count in best.set_aside.items()},
        # A metric of the user's may be NaN, which no JSON holds.
        "figures": {name: round(value, 6) for name, value in best.figures.items() if math.isfinite(value)},
    }


@dataclass(frozen=True, slots=True)
class ShapedReading:
    """The chains of what is trained on, and of what is validated on, where rows depend on the records before them.

    The shards of each partition are read in the order of their offsets, with the very states that live rows are made
    by, and at the archive's end these are a part of checkpoint 0. So the live model goes on with whole sequences.
    """

    training: RowChains | None = None
    """None where each row is made of one record."""
    validation: RowChains | None = None

    @property
    def states(self) -> Sequence[Shaper]:
        """What is remembered at the archive's end, once all was read; nothing where nothing is."""
        last = self.validation or self.training
        return () if last is None else last.states


def require_order(
    settings: Settings, source: ShardSource | TopicRange, position: Offsets | None, *, served: bool
) -> None:
    """Raise ConfigError where rows depend on others in a way that the source cannot serve.

    They are those of a batch, or the records before them, of which the source does not say which these are.
    """
    unsuited = {
        "training.rows: together learns whole batches alone, and the last batch of an epoch is none; have the trainer "
        "learn the records live, with kafka.start: earliest": settings.training.rows == "together",
        "labels: a pretraining learns the labels that its records hold; have the trainer learn both topics from their "
        "beginnings, with kafka.start: earliest": settings.labels.used,
        "records.label.classes: a pretraining does not number classes; list them by one_of": any(
            label.appearing is not None for label in settings.block_schema.labels
        ),
    }
    for text, applies in unsuited.items():
        if applies:
            raise ConfigError(text)
    shaping = settings.shapers()
    if not shaping:
        return
    what = shaping[0].setting
    if served:
        raise ConfigError(f"--service: its workers read shards in no order, which {what} cannot do: leave it out")
    if isinstance(source, TopicRange):
        if position is not None:
            raise ConfigError(f"--position: with {what} live training begins where the range ends: leave it out")
        return
    if not source.archived:
        raise ConfigError(
            f"{what}: a file of Examples names no partition and no offset, and rows depend on the records before "
            "them: pretrain on the archive, or on a range of the topics by --from"
        )
    ends = source.positions or {}
    for partition, offset in () if position is None else sorted(position.offsets.items()):
        if offset != ends.get(partition, offset):
            raise ConfigError(
                f"--position: with {what} {partition} goes on at {ends[partition]}, where the archive ends, and not at "
                f"{offset}: leave it out"
            )


def shaped_reading(
    settings: Settings,
    training: ShardSource,
    validation: ShardSource | None,
    ends: Mapping[Partition, int] | None,
) -> ShapedReading:
    """Return the chains of a source's two parts; `ends` has the offsets that follow the whole."""
    if not settings.shapers():
        return ShapedReading()
    ends = ends or {}
    validated = () if validation is None else chains_of(validation, ends)
    begins = {chain.partition: chain.start for chain in validated}
    chains = RowChains(chains_of(training, {**ends, **begins}), settings.shapers)
    return ShapedReading(chains, None if validation is None else RowChains(validated, settings.shapers, chains))


def chains_of(source: ShardSource, following: Mapping[Partition, int]) -> tuple[ShardChain, ...]:
    """Return the chain of each partition; `following` says where what comes after it begins."""
    places = dict[Partition, list[int]]()
    for place in sorted(range(len(source.shards)), key=lambda place: source.shards[place].first):
        places.setdefault(source.archived[place].partition, []).append(place)
    return tuple(
        ShardChain(
            partition=partition,
            places=tuple(mine),
            start=source.shards[mine[0]].first,
            end=following.get(partition, source.shards[mine[-1]].end),
        )
        for partition, mine in sorted(places.items())
    )
