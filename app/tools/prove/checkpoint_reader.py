"""Reads checkpoints without a trainer and without TensorFlow: which are good, and what they testify."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.rules import NAME as LABELS
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.ledger.interventions import Skip
from millrace.training.ledger.ledger import Ledger, PartitionAccount
from millrace.training.ledger.offset_checksum import Evidence

Array = npt.NDArray[Any]
STATE = ("model", "optimizer", "windows")
"""The parts whose arrays are compared, where a checkpoint has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The contents of one durable checkpoint."""

    manifest: Manifest
    testimonies: Mapping[Partition, Evidence]
    """The witness: what the weights have really seen."""
    accounts: Mapping[Partition, PartitionAccount]
    skips: tuple[Skip, ...]
    arrays: Mapping[str, Array]
    """Model, optimizer, and where there are windows the last records of each key."""
    joined: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict)
    """With labels that come later: how many records of each partition had one, and how many had none."""

    @property
    def number(self) -> int:
        """The checkpoint's number."""
        return self.manifest.number

    @property
    def settled(self) -> int:
        """The number of offsets settled since the history began."""
        return sum(account.position - account.start for account in self.accounts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in the folder, with every byte read."""

    good: tuple[int, ...]
    """Numbers, ascending."""
    bad: tuple[str, ...]
    """Checkpoints that do not verify, and why."""
    torn: int
    """Saves that were under way when their process ended."""


class Shelf:
    """The checkpoints of one name, read-only."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._store = CheckpointStore(folder)

    def contents(self) -> Contents:
        """Read and verify everything."""
        found = [one for one in self._store.listing(deep=True) if one.number is not None]
        torn = sum(name.name.startswith(".saving-") for name, _ in self._folder.temporaries())
        return Contents(
            good=tuple(sorted(one.number for one in found if one.verified and one.number is not None)),
            bad=tuple(f"{one.name}: {one.condition} {one.problems}" for one in found if not one.verified),
            torn=torn,
        )

    def newest_number(self) -> int | None:
        """Return the checkpoint that a start would resume from, verified but not loaded; None where there is none."""
        manifest = self._store.newest()
        return None if manifest is None else manifest.number

    def newest(self) -> Statement | None:
        """Load the checkpoint that a start would resume from; None where there is none."""
        number = self.newest_number()
        return None if number is None else self.statement(number)

    def numbers(self) -> list[int]:
        """Return the numbers of all published checkpoints, without reading them."""
        return self._folder.numbers()

    def settled(self) -> int:
        """Return how many offsets the newest checkpoint has settled, by its manifest alone; 0 before the first."""
        with suppress(MillraceError, OSError):  # it may be pruned meanwhile
            for number in reversed(self.numbers()):
                return sum(self._store.manifest(number).positions.values())
        return 0

    def statement(self, number: int) -> Statement:
        """Load this checkpoint."""
        parts = self._store.load(number)
        ledger = Ledger()
        ledger.restore(parts[ledger.name])
        return Statement(
            manifest=self._store.manifest(number),
            testimonies={Partition.parse(name): Evidence(*row) for name, row in parts["witness"].facts.items()},
            accounts=ledger.statistics().partitions,
            skips=ledger.skips,
            arrays={
                f"{name}/{key}": np.asarray(value)
                for name in STATE
                if name in parts
                for key, value in parts[name].arrays.items()
            },
            joined={
                Partition.parse(name): one["counts"]
                for name, one in (parts[LABELS].facts["partitions"] if LABELS in parts else {}).items()
            },
        )
