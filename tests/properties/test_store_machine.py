"""The store and the ledger against a simple model: whatever is published, damaged, crashed, rewound or taken over.

The model knows every checkpoint ever published, its parent, its positions, and which files were damaged. What must
hold: a restart goes on from what was last ordered, or from the nearest sound ancestor of it; what is loaded is what was
saved, and adds up; numbers only grow; nothing that a passed writer publishes is ever loaded; nobody is told of a
checkpoint that is not durable.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.consumers.failpoints import FailpointError, arm
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints import (
    CheckpointStore,
    Condition,
    Folder,
    FolderLease,
    LeaseOptions,
    PartState,
    SaveReason,
    SaveRequest,
    StoreOptions,
)
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.errors import AllCorruptError, CheckpointError, CorruptError
from millrace.training.ledger.ledger import Ledger, Skip
from tests.properties.effort import tried

P = Partition("clicks", 0)
IMPATIENT = LeaseOptions(renew_every=60.0, stale_after=0.0, poll_every=0.001)
BEFORE_RENAME = ("save.before_data", "save.after_data", "save.before_manifest", "save.after_manifest")
AFTER_RENAME = ("save.after_rename", "save.before_prune")
KEPT = 3


@dataclass(frozen=True)
class Known:
    """What the model knows of one checkpoint."""

    parent: int | None
    weight: int
    ledger: dict[str, Any]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.head: int | None = None
        self.folder = Folder(self.root / "clicks")
        self.known: dict[int, Known] = {}
        self.told: list[int] = []
        self.fenced: set[int] = set()
        self.harmed: set[tuple[int, int]] = set()
        self.highest = -1
        self.writer: FolderLease | None = None

    def teardown(self) -> None:
        arm("")
        if self.writer is not None:
            self.writer.release()
        shutil.rmtree(self.root)

    # What the trainer does.

    @initialize()
    def begin(self) -> None:
        self._open()
        assert self.store.newest() is None
        self._begin_afresh(start_over=False)

    @rule(size=st.integers(1, 20), bad=st.integers(0, 3), gap=st.integers(0, 2), refused=st.integers(0, 1))
    def learn(self, size: int, bad: int, gap: int, refused: int) -> None:
        start = self.ledger.positions()[P]
        end = start + size + bad + gap
        skipped: dict[str, int] = {}
        for skip in self.ledger.skips:
            if cut := skip.overlap(start, end):
                skipped[skip.order] = skipped.get(skip.order, 0) + cut
        room = end - start - sum(skipped.values())
        aside = min(bad, room)
        gaps = min(gap, room - aside)
        learnt = room - aside - gaps
        span = Span(
            partition=P,
            index=0,
            start=start,
            end=end,
            learnt=learnt,
            set_aside={Reason.MALFORMED: aside},
            skipped=skipped,
            gaps=gaps,
        )
        facts = BlockFacts(
            number=0,
            incarnation=self.ledger.incarnation,
            spans=(span,),
            batches=1,
            rows=learnt,
            seed=0,
            fetched_at=0.0,
            oldest_ms=0,
            newest_ms=0,
        )
        refused = min(refused, learnt)
        assert self.ledger.settle(facts, {P: {Reason.UPDATE_NOT_FINITE: refused}})
        self.weight += learnt - refused

    @rule()
    def save(self) -> None:
        self._published(self.store.publish(self._order(self.head), self._parts()))
        good = [number for number in self.folder.numbers() if number not in self.fenced | self._all_harmed()]
        beginnings = sum(self.known[number].parent is None for number in good)
        assert len(good) <= KEPT + beginnings + 1, "pruned too little"

    @rule(window=st.sampled_from(BEFORE_RENAME))
    def save_on_a_full_disk(self, window: str) -> None:
        """Let what `keep` allows go, and then perhaps make the save; whatever must stay is there."""
        arm(f"{window}=full:once")
        before = set(self.folder.numbers())
        unfenced = sorted(before - self.fenced)
        beginnings = {number for number, known in self.known.items() if known.parent is None}
        must_stay = before & ({*unfenced[1 - KEPT :]} | self.fenced | beginnings | {self.head})
        try:
            manifest = self.store.publish(self._order(self.head), self._parts())
        except CheckpointError:
            assert set(self.folder.numbers()) <= before
            assert self.folder.temporaries() == []
        else:
            assert before - set(self.folder.numbers()), "the disk was full, nothing was removed, and the save succeeded"
            self._published(manifest)
        assert must_stay <= set(self.folder.numbers())

    @rule(window=st.sampled_from(BEFORE_RENAME + AFTER_RENAME))
    def crash_in_a_save(self, window: str) -> None:
        arm(f"{window}=raise:once")
        self._crash(window, lambda: self.store.publish(self._order(self.head), self._parts()), self.head)

    @rule(data=st.data(), ahead=st.integers(0, 5), width=st.integers(1, 10))
    def rewind(self, data: st.DataObject, ahead: int, width: int) -> None:
        target = self._sound_target(data)
        if target is not None:
            self._published(
                self.store.publish_linked(self.store.load_verified(target), *self._rewound(target, ahead, width))
            )

    @rule(data=st.data(), window=st.sampled_from(BEFORE_RENAME + AFTER_RENAME))
    def crash_in_a_rewind(self, data: st.DataObject, window: str) -> None:
        target = self._sound_target(data)
        if target is not None:
            replaced, order = self._rewound(target, 1, 2)
            arm(f"{window}=raise:once")
            self._crash(
                window, lambda: self.store.publish_linked(self.store.load_verified(target), replaced, order), target
            )

    # What befalls it.

    @rule()
    def restart(self) -> None:
        self._close()
        self._open()
        self._restore()

    @precondition(lambda self: len(self.harmed) < 6)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.folder.numbers()))
        files = sorted(path for path in self.folder.checkpoint(number).iterdir() if path.stat().st_size)
        path = data.draw(st.sampled_from(files))
        raw = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
        inode = path.stat().st_ino
        if not any(inode == harmed for _, harmed in self.harmed):
            path.write_bytes(raw)
            self.harmed.add((number, inode))
        self.restart()

    @rule()
    def be_taken_over_while_stopped(self) -> None:
        """Take over from a process stopped right after its check of the term, which publishes when it wakes."""
        zombie, old = self.writer, CheckpointStore(self.folder, self.writer, StoreOptions(keep=KeepLast(99)))
        assert zombie is not None
        order, parts = self._order(self.head), self._parts()
        self._open()
        zombie.check = lambda: None  # type: ignore[method-assign]
        manifest = old.publish(order, parts)
        self.fenced.add(manifest.number)
        assert manifest.number > self.highest
        self.highest = manifest.number
        zombie.release()
        assert self.store.verify(manifest.number).condition is Condition.FENCED
        self._restore()

    # What must hold.

    @invariant()
    def the_ledger_adds_up(self) -> None:
        if self.known:
            assert self.ledger.history_balanced()
            assert self.ledger.learnt()[P] == self.weight

    @invariant()
    def what_is_on_disk_is_what_the_model_knows(self) -> None:
        if not self.known:
            return
        for found in self.store.listing(deep=True):
            assert found.number is not None, f"{found.name} is left"
            if found.number in self.fenced:
                assert found.condition is Condition.FENCED
            else:
                assert (found.condition is Condition.GOOD) == (not self._is_harmed(found.number))
        assert self.told == sorted(set(self.told))
        assert set(self.told) <= self.known.keys()

    # How it is done.

    def _open(self) -> None:
        self.writer = FolderLease.acquire(self.folder, "the machine", options=IMPATIENT)
        options = StoreOptions(keep=KeepLast(KEPT), on_durable=lambda manifest: self.told.append(manifest.number))
        self.store = CheckpointStore(self.folder, self.writer, options)
        assert self.folder.temporaries() == []

    def _close(self) -> None:
        assert self.writer is not None
        self.writer.release()

    def _begin_afresh(self, *, start_over: bool) -> None:
        self.ledger, self.weight, self.head = Ledger(), 0, None
        self.ledger.join(P, 50)
        self.ledger.begin_incarnation()
        self._published(self.store.publish(self._order(None), self._parts(), start_over=start_over))

    def _order(self, parent: int | None) -> SaveRequest:
        return SaveRequest(
            reason=SaveReason.INTERVAL,
            parent=parent,
            step=self.weight,
            incarnation=self.ledger.incarnation,
            positions=self.ledger.positions(),
        )

    def _parts(self) -> dict[str, PartState]:
        weight = self.weight
        return {"model": PartState(arrays={"w": np.array(weight)}), "ledger": self.ledger.snapshot()}

    def _published(self, manifest: Manifest) -> None:
        self._note(manifest)
        kept = self.folder.numbers()
        assert manifest.parent is None or manifest.parent in kept, "nothing is left to fall back to"
        beginnings = {number for number, known in self.known.items() if known.parent is None}
        assert beginnings <= set(kept), "a beginning was pruned"
        self.head = manifest.number
        loaded = self.store.load(manifest.number)
        self._be(loaded)

    def _note(self, manifest: Manifest) -> None:
        assert manifest.number > self.highest, "a number was used twice"
        self.highest = manifest.number
        state = self.store.load(manifest.number)
        self.known[manifest.number] = Known(manifest.parent, _weight(state), dict(state["ledger"].facts))

    def _be(self, state: dict[str, PartState]) -> None:
        self.ledger.restore(state["ledger"])
        self.ledger.begin_incarnation()
        self.weight = _weight(state)

    def _sound_target(self, data: st.DataObject) -> int | None:
        numbers = [n for n in self.folder.numbers() if n not in self.fenced and not self._is_harmed(n)]
        return data.draw(st.sampled_from(numbers)) if numbers else None

    def _rewound(self, target: int, ahead: int, width: int) -> tuple[dict[str, PartState], SaveRequest]:
        ledger = Ledger()
        ledger.restore(self.store.load(target)["ledger"])
        start = ledger.positions()[P] + ahead
        name = f"rewind-{self.highest + 1}"
        ledger.skip(Skip(order=name, partition=P, start=start, end=start + width, reason="poisoned"))
        assert sum(skip.overlap(start, start + width) for skip in ledger.skips) == width
        order = SaveRequest(
            reason=SaveReason.REWIND,
            parent=None,
            step=0,
            incarnation=self.ledger.incarnation,
            positions=ledger.positions(),
        )
        return {"ledger": ledger.snapshot()}, order

    def _crash(self, window: str, publish: Any, parent: int | None) -> None:
        try:
            publish()
        except FailpointError:
            pass
        else:
            raise AssertionError(f"the fault has missed {window}")
        arm("")
        self._close()
        self._open()
        if window in AFTER_RENAME:
            manifest = self.store.manifest(self.folder.numbers()[-1])
            assert manifest.parent == parent
            self._note(manifest)
        self._restore()

    def _restore(self) -> None:
        """Start as a trainer does, and compare with what the model expects."""
        way = self._way()
        expected = next((n for n in way if n in self.folder.numbers() and not self._is_harmed(n)), None)
        try:
            newest = self.store.newest()
        except AllCorruptError:
            assert expected is None or self._unreadable(way) > 1, f"{expected} is sound, and was not found"
            self._begin_afresh(start_over=True)
            return
        assert newest is not None
        assert newest.number == expected
        state = self.store.load(newest.number)
        known = self.known[newest.number]
        assert (_weight(state), state["ledger"].facts) == (known.weight, known.ledger)
        self.head = newest.number
        self._be(state)

    def _way(self) -> list[int]:
        """Return the way from the last command's checkpoint along all parents, with pruned ones."""
        number: int | None = max(n for n in self.folder.numbers() if n not in self.fenced)
        way = []
        while number is not None:
            way.append(number)
            number = self.known[number].parent
        return way

    def _unreadable(self, way: list[int]) -> int:
        paths = [self.folder.checkpoint(number) / FILE_NAME for number in way]
        inodes = {inode for _, inode in self.harmed}
        return sum(path.exists() and path.stat().st_ino in inodes for path in paths)

    def _is_harmed(self, number: int) -> bool:
        inodes = {inode for _, inode in self.harmed}
        if not any(path.stat().st_ino in inodes for path in self.folder.checkpoint(number).iterdir()):
            return False
        try:
            self.store.load(number)
        except CorruptError:
            return True
        raise AssertionError(f"{number} is damaged, and was loaded")

    def _all_harmed(self) -> set[int]:
        return {number for number in self.folder.numbers() if number not in self.fenced and self._is_harmed(number)}


def _weight(state: dict[str, PartState]) -> int:
    array = state["model"].arrays["w"]
    return int(array)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = tried(15, steps=30)
