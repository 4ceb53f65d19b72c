"""Real checkpoints of a trainer that never ran: a ledger that moves, and a model of a few numbers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints import (
    CheckpointStore,
    Folder,
    FolderLease,
    Manifest,
    PartState,
    SaveReason,
    SaveRequest,
    StoreOptions,
)
from millrace.training.checkpoints.manifest import Measured
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.commands import Rewind
from millrace.training.history.rewind import prepare_rewind, present_on_disk, publish_rewind
from millrace.training.history.rewind_target import verified_target
from millrace.training.ledger.interventions import Interventions
from millrace.training.ledger.ledger import Ledger

P0, P1 = Partition("clicks", 0), Partition("clicks", 1)
PER_STEP = {P0: 10, P1: 5}
"""Offsets that a step settles; of clicks:0 the first is malformed each time, and two hold a list that is cut."""
BEGAN_MS, STEP_MS = 1_763_694_000_000, 3_600_000
"""The event times of a step are within an hour of its own; the first begins at 2025-11-21T03:00:00Z."""
MEASURED = Measured(
    watched="accuracy", higher_is_better=True, records=12_345, window_s=300.0, baseline={"accuracy": 0.5, "loss": 0.69}
)
PROVENANCE = {
    "millrace": "0.1.0",
    "python": "3.11.9",
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "numpy": "2.4.0",
    "config_sha256": "c0" * 32,
    "model_sha256": "f0" * 32,
    "cluster_id": "a-cluster",
    "topics": ["clicks"],
}
CONFIG = """\
name: clicks
kafka:   {bootstrap_servers: [127.0.0.1:1], topics: [clicks]}
records: {features: {price: float32}, label: {clicked: float32}}
model:   {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints, keep: {last: 20}}
"""


def config_in(folder: Path, further: str = "") -> Path:
    """Write the settings that go with the history."""
    path = folder / "clicks.yaml"
    path.write_text(CONFIG + further)
    return path


def folder_in(folder: Path) -> Folder:
    """Where those settings keep checkpoints."""
    return Folder(folder / "checkpoints" / "clicks")


def publish_history(
    folder: Folder,
    steps: int,
    model: Mapping[str, np.ndarray] | None = None,
    *,
    without: Collection[str] = (),
    accuracies: Sequence[float | None] = (),
) -> None:
    """Publish number 0 and one checkpoint a step, each the child of the one before; then let the folder go.

    `without` are facts of the ledger that an older version did not write down. `accuracies` are the live accuracy of
    each checkpoint, from number 0 on.
    """
    writer = FolderLease.acquire(folder, "a test")
    try:
        store = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(100)))
        ledger = Ledger()
        for partition in PER_STEP:
            ledger.join(partition, 0)
        ledger.begin_incarnation()
        parent = None
        for step in range(steps + 1):
            if step:
                ledger.settle(_block(step))
            arrays = {"w": np.full(4, step, np.float32)} if model is None else dict(model)
            parts = {
                ledger.name: PartState(
                    facts={name: fact for name, fact in ledger.snapshot().facts.items() if name not in without}
                ),
                "model": PartState(arrays=arrays),
                "progress": PartState(facts={"step": step, "turn": None}),
            }
            order = _order(parent, step, ledger)
            if accuracies:
                order = replace(order, measured=MEASURED, metrics=_metrics(accuracies[step]))
            parent = store.publish(order, parts).number
    finally:
        writer.release()


def rewind(
    store: CheckpointStore,
    command: Rewind,
    *,
    orders: Interventions | None = None,
    incarnation: int = 1,
    provenance: Mapping[str, Any] | None = None,
) -> Manifest:
    """Publish a rewind, under the interventions on disk unless others are given."""
    orders = present_on_disk(store).orders if orders is None else orders
    prepared = prepare_rewind(verified_target(store, command.to), command, orders)
    return publish_rewind(store, prepared, incarnation=incarnation, provenance=provenance)


def _order(parent: int | None, step: int, ledger: Ledger) -> SaveRequest:
    return SaveRequest(
        reason=SaveReason.START if parent is None else SaveReason.INTERVAL,
        parent=parent,
        step=step,
        incarnation=ledger.incarnation,
        positions=ledger.positions(),
        provenance=PROVENANCE,
    )


def _metrics(accuracy: float | None) -> dict[str, float]:
    return {} if accuracy is None else {"loss": 0.5, "accuracy": accuracy}


def _block(step: int) -> BlockFacts:
    spans = [
        Span(
            partition=partition,
            index=index,
            start=(step - 1) * count,
            end=step * count,
            learnt=count - 1 if partition == P0 else count,
            set_aside={Reason.MALFORMED: 1} if partition == P0 else {},
            truncated={"recent": 2} if partition == P0 else {},
        )
        for index, (partition, count) in enumerate(PER_STEP.items())
    ]
    return BlockFacts(
        number=step,
        incarnation=1,
        spans=tuple(spans),
        batches=1,
        rows=sum(span.learnt for span in spans),
        seed=0,
        fetched_at=0.0,
        oldest_ms=BEGAN_MS + (step - 1) * STEP_MS,
        newest_ms=BEGAN_MS + step * STEP_MS - 1,
    )
