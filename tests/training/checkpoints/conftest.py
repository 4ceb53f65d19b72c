"""What the tests of the durable state share: a folder, a writer, a store, orders and states."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from millrace.consumers.failpoints import arm
from millrace.consumers.records import Partition
from millrace.training.checkpoints import (
    CheckpointStore,
    Folder,
    FolderLease,
    LeaseOptions,
    PartState,
    SaveReason,
    SaveRequest,
)

QUICK = LeaseOptions(renew_every=0.1, stale_after=1.0, poll_every=0.02)
PARTITION = Partition("clicks", 0)


class MakeOrder(Protocol):
    """Make a save request with this parent, and any other fields that matter to a test."""

    def __call__(
        self, parent: int | None, *, reason: SaveReason = ..., step: int = ..., **more: Any
    ) -> SaveRequest: ...


class MakeParts(Protocol):
    """Make the parts of a small model after this many steps."""

    def __call__(self, step: int) -> dict[str, PartState]: ...


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Disarm all failpoints after each test."""
    yield
    arm("")


@pytest.fixture
def quick() -> LeaseOptions:
    """Return lease options that renew and expire ten times as fast."""
    return QUICK


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return the folder of one name."""
    return Folder(tmp_path / "clicks")


@pytest.fixture
def writer(folder: Folder) -> Iterator[FolderLease]:
    """Acquire the lease of the folder."""
    writer = FolderLease.acquire(folder, "a test")
    yield writer
    writer.release()


@pytest.fixture
def store(folder: Folder, writer: FolderLease) -> CheckpointStore:
    """Return a store that may publish."""
    return CheckpointStore(folder, writer)


@pytest.fixture
def order() -> MakeOrder:
    """Make orders."""

    def make(
        parent: int | None, *, reason: SaveReason = SaveReason.INTERVAL, step: int = 0, **more: Any
    ) -> SaveRequest:
        return SaveRequest(
            reason=reason, parent=parent, step=step, incarnation=1, positions={PARTITION: 10 * step}, **more
        )

    return make


@pytest.fixture
def parts() -> MakeParts:
    """Make states."""

    def make(step: int) -> dict[str, PartState]:
        return {
            "model": PartState(arrays={"w": np.full((3, 4), step, np.float32), "n": np.array(step)}),
            "ledger": PartState(facts={"position": 10 * step}),
        }

    return make


@pytest.fixture
def publish_steps(store: CheckpointStore, order: MakeOrder, parts: MakeParts) -> Callable[[int], list[int]]:
    """Publish a line of checkpoints, one a step, each the child of the one before."""

    def publish(count: int) -> list[int]:
        numbers: list[int] = []
        for step in range(count):
            parent = numbers[-1] if numbers else None
            numbers.append(store.publish(order(parent, step=step), parts(step)).number)
        return numbers

    return publish
