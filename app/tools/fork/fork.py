"""Forking: a changed model begins with what another has learnt, and goes on from its position, or replays.

Holds the folder of the new name while it works; only reads the old one, whose trainer may run. Runs on the calling
thread. Imports TensorFlow.

1. The checkpoint of the old model is read and verified; the new name has none. 2. The new model is built and proven as
a start does. 3. Weights are matched by their place, what the optimizers know is kept where it fits, and classes that
have appeared keep their numbers. 4. Positions: those of the checkpoint, with its whole ledger; for a replay, an empty
ledger at the offsets that Kafka gives. 5. All of it is published as checkpoint 0. Until then there is nothing: a fork
that was killed is given again.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from millrace.app.service.carried_classes import carry_classes
from millrace.app.service.checkpoint_policies import remove_some, save_policy, store_options
from millrace.app.service.kept_sample import RecordSamples
from millrace.app.service.model_setup import build_learner, live_metrics_of, prove
from millrace.app.service.provenance import hyperparameter_options, provenance_of
from millrace.app.service.step_numbers import numbers_in, with_numbers
from millrace.app.settings import Loaded, Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.app.tools.fork.origin import ForkOrigin, inherited_ledger, require_unused, standing_skips
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Start
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.pipelines.shaping import LEFT_OUT_BY_SHAPING
from millrace.pipelines.shaping.shaper import Shaper
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.checkpoints.writer import CheckpointWriter
from millrace.training.errors import CorruptError
from millrace.training.ledger.ledger import NAME as LEDGER
from millrace.training.ledger.ledger import Ledger, positions_of
from millrace.training.model.hyperparameters import NAME as HYPERPARAMETERS
from millrace.training.model.learner import Learner
from millrace.training.model.weights.initial_weights import KeptSlots, WeightTable, keep_slots, match, take_over
from millrace.training.model.weights.weight_files import FoundWeights
from millrace.training.model.weights.weights import PART
from millrace.training.trainer.saving import Saving, SavingOptions

_CONNECT_S = 15.0
_PROGRESS = "progress"
_CLASS = ".class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A fork that is durable."""

    manifest: Manifest
    table: WeightTable
    slots: KeptSlots


def fork(loaded: Loaded, origin: ForkOrigin, start: Start | None) -> Forked:
    """Publish checkpoint 0 of the new model; raise MillraceError where that cannot be done.

    `start` is where a replay begins; None goes on from the checkpoint's position.
    """
    recorded = origin.part(HYPERPARAMETERS).facts
    settings = with_numbers(loaded.settings, numbers_in(recorded))
    loaded = replace(loaded, settings=settings)
    with _taken(settings) as (lease, store):  # (1)
        offsets = None if start is None else _offsets(settings, origin, start)
        # (2) Build and prove the new model, on the records that the old one has kept where they fit the schema.
        sample = RecordSamples(settings, origin.folder).kept()
        samples = RecordSamples(settings, lease.folder)
        learner = build_learner(settings, (lambda: samples.keep(sample),))
        prove(learner, settings)
        store.require_room(learner.state_bytes)
        what = f"{origin.name}@{origin.number}"
        found = FoundWeights(what=what, sha256=origin.sha256, arrays=origin.part(PART).arrays)
        table = match(learner.model, found)
        take_over(learner.model, table)  # (3)
        learner.scale.restore(origin.part(learner.scale.name))  # the weights are for inputs of that scale
        classes = {name.removesuffix(_CLASS): value for name, value in recorded.items() if name.endswith(_CLASS)}
        slots = keep_slots(learner.model, origin.part("optimizer").arrays, classes)
        facts = {key: value for key, value in table.facts().items() if key != "source"}
        told = {
            "forked_from": {
                "name": origin.name,
                "number": origin.number,
                **facts,
                "step": origin.checkpoint.manifest.step,
                "reads": "on from its position" if start is None else f"from {start}",
                "optimizer": {"kept": slots.kept, "new": slots.new},
            }
        }
        manifest = _publish(loaded, store, origin, learner, offsets, told)
    return Forked(manifest=manifest, table=table, slots=slots)


@contextmanager
def _taken(settings: Settings) -> Iterator[tuple[FolderLease, CheckpointStore]]:
    """Hold the folder of the new name, in which there must be no checkpoint."""
    lease = FolderLease.acquire(
        Folder(settings.checkpoints.path / settings.name),
        f"millrace fork --as {settings.name}",
        make_room=partial(remove_some, settings),
    )
    try:
        store = CheckpointStore(lease.folder, lease, store_options(settings, lease.folder))
        require_unused(store)
        yield lease, store
    finally:
        lease.release()


def _offsets(settings: Settings, origin: ForkOrigin, start: Start) -> Mapping[Partition, int]:
    """Return where a replay begins: never after the checkpoint's position, so that no record is left out."""
    source = KafkaSource(kafka_options(settings.kafka), kafka_history(settings))
    source.start(_CONNECT_S)
    try:
        found, cluster = source.resolve_start(start), source.cluster_id()
    finally:
        source.stop(_CONNECT_S)
    then = origin.checkpoint.manifest.provenance.get("cluster_id")
    if None not in (then, cluster) and then != cluster:
        raise ConfigError(
            f"kafka.bootstrap_servers: {origin.name}@{origin.number} has learnt from the cluster {then}, and this is "
            f"{cluster}: its records are others"
        )
    learnt = positions_of(origin.part(LEDGER))
    return {partition: min(offset, learnt.get(partition, offset)) for partition, offset in found.items()}


def _publish(
    loaded: Loaded,
    store: CheckpointStore,
    origin: ForkOrigin,
    learner: Learner,
    offsets: Mapping[Partition, int] | None,
    told: Mapping[str, Any],
) -> Manifest:
    settings, ledger, live = loaded.settings, Ledger(), live_metrics_of(learner, loaded.settings)
    states = settings.shapers()
    cluster = origin.checkpoint.manifest.provenance.get("cluster_id")
    saving = Saving(
        store,
        CheckpointWriter(store),
        learner,
        ledger,
        live,
        SavingOptions(
            policy=save_policy(settings),
            provenance={**provenance_of(loaded, cluster), **told},
            hyperparameters=hyperparameter_options(settings),
            clock=time.monotonic,
            shapers=states,
            prepare=partial(_go_on, origin, learner, ledger, offsets),
        ),
    )
    saving.progress.step = origin.checkpoint.manifest.step
    if offsets is None:
        saving.progress.restore(origin.part(_PROGRESS))
        _keep_rows(settings, origin, states)
    carry_classes(settings, states, origin.checkpoint.parts, f"{origin.name}@{origin.number}")  # (3)
    manifest = saving.begin_or_restore(lambda: offsets or {}, start_over=False)  # (5)
    saving.finish()
    return manifest


def _go_on(
    origin: ForkOrigin, learner: Learner, ledger: Ledger, offsets: Mapping[Partition, int] | None
) -> Mapping[str, Any]:
    """Set the positions (4)."""
    old = origin.part(LEDGER)
    if offsets is not None:
        ledger.follow(standing_skips(origin, old))
        return {}
    ledger.restore(inherited_ledger(origin, old))
    learner.witness.restore(origin.part(learner.witness.name))
    return {}


def _keep_rows(settings: Settings, origin: ForkOrigin, states: Sequence[Shaper]) -> None:
    """Take over what is remembered of the records before the position, where rows are made as they were."""
    then, now = origin.part(HYPERPARAMETERS).facts, hyperparameter_options(settings).settings
    made = (*(f"{name}." for name in sorted(LEFT_OUT_BY_SHAPING)), "records.")
    if {key: value for key, value in then.items() if key.startswith(made)} != {
        key: value for key, value in now.items() if key.startswith(made)
    }:
        return
    for one in states:
        part = origin.part(one.name)
        try:
            one.load(part.arrays, part.facts)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptError(f"{origin.name}@{origin.number}: its {one.name} cannot be read; fork another") from error
