"""Hand-off, feed, assembler, trainer, ledger, witness and store in one, against what stands in the log.

The model is one word an offset: what became of it, on the history that is told last. Whatever happens in whatever order
(fetches, calls, saves, a slow or failing disk, deaths anywhere, rewinds, skips, retention, partitions that come), after
each step the trainer has learnt every good offset of that history exactly once and nothing else; both laws of
conservation hold; and so it is in every checkpoint that became durable. What a restart finds is what was last ordered.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.consumers.failpoints import FailpointError, arm
from millrace.consumers.records import Partition
from millrace.pipelines.stream.assemble import AssembleOptions
from millrace.pipelines.stream.row_order import RotationOptions
from millrace.training.checkpoints.manifest import Manifest, SaveReason
from millrace.training.commands import Rewind, Save
from millrace.training.errors import MissingCheckpointError, StepError
from millrace.training.ledger.interventions import Skip
from millrace.training.ledger.offset_checksum import Evidence
from tests.properties.lives import laws
from tests.properties.lives.history import LEARNT, History
from tests.properties.lives.life import DEATHS, Life
from tests.properties.lives.line import Line
from tests.properties.lives.log import BAD, GAP, GOOD, LOST
from tests.properties.lives.recorder import BATCH
from tests.properties.lives.world import World

PARTITIONS = [Partition("clicks", number) for number in range(3)]
COUNTS = st.integers(1, 9)
ORDERS = (SaveReason.REWIND, SaveReason.SKIP)


class LivesMachine(RuleBasedStateMachine):
    """Rows as they arrive, a block in time."""

    rotates = False
    kinds: tuple[str, ...] = (*[GOOD] * 8, *BAD, GAP)

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))

    def teardown(self) -> None:
        arm("")
        try:
            if hasattr(self, "life") and sys.exc_info()[0] is None:
                self._to_the_end()
        finally:
            if hasattr(self, "life"):
                self.life.die()
            shutil.rmtree(self.root)

    @initialize(
        data=st.data(), shuffle=st.sampled_from([0, 3]), room=st.sampled_from([2_000, 1 << 20]), share=st.integers(1, 3)
    )
    def begin(self, data: st.DataObject, shuffle: int, room: int, share: int) -> None:
        logs = [data.draw(self._kinds(24 if self.rotates else 0, 48)), data.draw(self._kinds(12, 48))]
        wait = None if self.rotates else 1.0
        options = AssembleOptions(batch_size=BATCH, batches_per_call=2, max_wait_s=wait, shuffle=shuffle)
        rotation = RotationOptions(share=share) if self.rotates else None
        self.world = World(self.root, options, rotation=rotation, room=room)
        for partition, kinds in zip(PARTITIONS, logs, strict=False):
            self.world.log.add(partition)
            self.world.log.kinds[partition] += kinds
        self.history = History()
        self.known: dict[int, History] = {}
        """Every checkpoint that ever became durable."""
        self.head = 0
        """The checkpoint that the state in memory comes from, or went into."""
        self.skips: list[Skip] = []
        self.ordering: Skip | None = None
        self.lost: set[tuple[Partition, int]] = set()
        """What the present incarnation has been told of as lost."""
        self.life = Life(self.world)
        assert self.life.start().number == 0
        self.known[0] = History(dict.fromkeys(self.world.log.firsts, 0), {p: [] for p in self.world.log.firsts})
        self._is_in(0)

    # What comes from outside.

    @rule(data=st.data())
    def produce(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.world.log.kinds)))
        self.world.log.kinds[partition] += data.draw(self._kinds(6, 20))

    @precondition(lambda self: not self.rotates)
    @rule()
    def come(self) -> None:
        """Add a partition."""
        if PARTITIONS[2] not in self.world.log.kinds:
            self.world.log.add(PARTITIONS[2])

    @precondition(lambda self: not self.rotates)
    @rule(data=st.data(), count=st.integers(1, 6))
    def retain_no_longer(self, data: st.DataObject, count: int) -> None:
        log = self.world.log
        partition = data.draw(st.sampled_from(sorted(log.kinds)))
        log.firsts[partition] = min(log.firsts[partition] + count, len(log.kinds[partition]))

    @rule(seconds=st.sampled_from([0.4, 1.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.now += seconds

    # What the trainer does, and what feeds it.

    @rule(data=st.data(), count=st.integers(1, 20))
    def fetch_of_one(self, data: st.DataObject, count: int) -> None:
        self._fetch(data.draw(st.sampled_from(sorted(self.world.log.kinds))), count)

    @rule(blocks=st.integers(1, 3))
    def draw_ahead(self, blocks: int) -> None:
        for _ in range(blocks):
            self._line().prefetch()

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self._turn()

    @rule(count=COUNTS, turns=st.integers(1, 4))
    def live(self, count: int, turns: int) -> None:
        for partition in sorted(self.world.log.kinds):
            self._fetch(partition, count)
        for _ in range(turns):
            self._turn()

    @rule(count=COUNTS, turns=st.integers(4, 12))
    def live_in_haste(self, count: int, turns: int) -> None:
        for _ in range(turns):
            self.world.clock.now += 0.5
            self.live(count, 1)

    @rule()
    def ask_for_a_save(self) -> None:
        self.life.commands.send(Save())
        self._turn()

    @rule(acknowledges=st.sampled_from([True, True, True, False]))
    def get_on_with_the_save(self, *, acknowledges: bool) -> None:
        self.life.acknowledges = acknowledges
        self.life.let_it_be_written()
        self.life.acknowledges = True
        future = self.life.under_way
        if future is not None and isinstance(future.exception(), FailpointError):
            self._die()
        self._note()

    @rule(data=st.data(), fast=st.booleans())
    def rewind(self, data: st.DataObject, *, fast: bool) -> None:
        """Rewind to any checkpoint; wait for a save under way, or cancel it."""
        self._order(self._drawn_order(data), fast=fast)

    # What befalls it.

    @rule(data=st.data(), point=st.sampled_from(DEATHS), after=st.integers(0, 1))
    def die_there(self, data: st.DataObject, point: str, after: int) -> None:
        """Let the process die when it passes this point, to which it is led; else it will die there for a while."""
        arm(f"{point}=raise:after={after}")
        if point.startswith("rewind"):
            self._order(self._drawn_order(data), fast=True)
        elif point.startswith("save"):
            self.ask_for_a_save()
            self.get_on_with_the_save(acknowledges=True)
        else:
            self.live_in_haste(5, 2)

    @rule(again=st.sampled_from([None, None, "restore.before", "restore.after"]))
    def die(self, again: str | None) -> None:
        self._die(again)

    @rule()
    def stop_and_start(self) -> None:
        """End in order, after which nothing is read again."""
        before = self.history.positions()
        with self._alive() as lives:
            self.life.stop()
            lives.append("to the end")
        if lives:
            self._note()
            self._start()
            assert {p: at for p, at in self.history.positions().items() if p in before} == before

    # What must hold.

    @invariant()
    def every_good_offset_was_learnt_once_and_all_else_has_its_name(self) -> None:
        if hasattr(self, "life"):
            laws.agree(self.history, self.life.learner.seen.times, self.life.ledger.statistics().partitions)
            learnt = self.history.places(LEARNT)
            testimonies = self.life.learner.witness.testimonies()
            for partition in self.history.starts:
                offsets = [offset for p, offset in learnt if p == partition]
                assert testimonies[partition] == Evidence.of(offsets)

    @invariant()
    def every_record_that_was_fetched_is_in_one_place(self) -> None:
        if hasattr(self, "life"):
            laws.in_one_place(self._line(), self.life.ledger.statistics().partitions, self.life.began)

    @invariant()
    def whoever_was_told_was_told_of_what_is_durable(self) -> None:
        if hasattr(self, "life"):
            told = [manifest.number for manifest in self.world.told]
            assert told == sorted(set(told))
            assert set(told) <= self.known.keys()

    # How a step is taken.

    def _line(self) -> Line:
        line = self.life.line
        assert line is not None
        return line

    def _fetch(self, partition: Partition, count: int) -> None:
        line, log = self._line(), self.world.log
        start = line.positions.get(partition, log.firsts[partition])
        first = log.firsts[partition]
        if line.fetch(partition, count) and start < first:
            self.lost |= {(partition, at) for at in range(start, first)}

    def _kinds(self, least: int, most: int) -> st.SearchStrategy[list[str]]:
        return st.lists(st.sampled_from(self.kinds), min_size=least, max_size=most)

    def _drawn_order(self, data: st.DataObject) -> Rewind:
        target = data.draw(st.sampled_from(self.life.store.folder.numbers()))
        partition = data.draw(st.sampled_from(sorted(self.known[target].starts)))
        start = self.known[target].positions()[partition] + data.draw(st.integers(0, 4))
        width = 0 if self.rotates else data.draw(st.integers(0, 6))
        self.ordering = None
        if width:
            self.ordering = Skip(order="", partition=partition, start=start, end=start + width, reason="bad")
        return Rewind(to=target, skips=[self.ordering] if self.ordering else [])

    def _turn(self) -> None:
        line = self._line()
        self.life.fast = False
        with self._alive():
            assert self.life.turn()
            self._note()
            if self._line() is not line:  # a call has raised, and it fell back
                self._is_in(self._newest())
            self._follow()

    def _order(self, command: Rewind, *, fast: bool) -> None:
        line = self._line()
        self.life.fast = fast
        self.life.commands.send(command)
        with self._alive():
            assert self.life.turn()
            self._note()
            assert line.closed, "it was not stopped before it was rewound"
            laws.let_go(line)
            error = command.answer.exception(0)
            if error is None:
                assert command.answer.result(0).parent == command.to
                self._is_in(command.answer.result(0).number)
            else:
                assert isinstance(error, MissingCheckpointError), "what was pruned meanwhile is the only way to fail"
                self._is_in(None)
            self._follow()

    @contextmanager
    def _alive(self) -> Iterator[list[str]]:
        """Run a step in which the process may die; the yielded list is empty afterwards if it does."""
        lives: list[str] = []
        try:
            yield lives
        except (FailpointError, StepError):
            lives.clear()
            self._die()

    def _die(self, again: str | None = None) -> None:
        self.life.die()
        arm("")
        self._note()
        if again is not None:
            arm(f"{again}=raise:once")
            self.life = Life(self.world)
            with pytest.raises(FailpointError):
                self.life.start()
            self.life.die()
            arm("")
        self._start()

    def _start(self) -> None:
        self.ordering = None
        self.life = Life(self.world)
        newest = self._newest()
        assert self.life.start().number == newest, "it went on from another checkpoint than the newest"
        self._is_in(newest)

    def _to_the_end(self) -> None:
        """Learn and save all that is there; assert that no record is missing and none was learnt twice."""
        for _ in range(200):
            if self.history.positions() == self._ends():
                break
            for partition in sorted(self.world.log.kinds):
                self._fetch(partition, 50)
            self.world.clock.now += 1.0
            self._turn()
            self.get_on_with_the_save(acknowledges=True)
            self.every_good_offset_was_learnt_once_and_all_else_has_its_name()
        assert self.history.positions() == self._ends(), "it does not come to the end"
        self.stop_and_start()
        self.every_good_offset_was_learnt_once_and_all_else_has_its_name()
        self.life.stop()

    def _ends(self) -> dict[Partition, int]:
        return {p: len(kinds) for p, kinds in self.world.log.kinds.items() if kinds or p in self.history.starts}

    # The model.

    def _newest(self) -> int:
        return self.life.store.folder.numbers()[-1]

    def _is_in(self, number: int | None) -> None:
        """Take note that an incarnation has begun, from this checkpoint, or from where it was."""
        self.lost = set()
        if number is not None:
            self.head = number
            self.history = self.known[number].up_to(self.known[number].positions())
        order = self._line().order
        for partition in order.positions.keys() - self.history.starts.keys():
            self.history.starts[partition] = self.world.log.firsts[partition]
            self.history.fates[partition] = []
        assert order.positions == self.history.positions()

    def _follow(self) -> None:
        """Check that what was settled has the outcome that the log says."""
        for partition, position in self.life.ledger.positions().items():
            if partition not in self.history.starts:
                self.history.starts[partition] = self._line().joined[partition]
                self.history.fates[partition] = []
            known = self.history.positions()[partition]
            self.history.fates[partition] += [self._fate(partition, at) for at in range(known, position)]

    def _fate(self, partition: Partition, offset: int) -> str:
        kind = self.world.log.kinds[partition][offset]
        if (partition, offset) in self.lost:
            return LOST
        order = next((s.order for s in self.skips if s.partition == partition and s.overlap(offset, offset + 1)), None)
        if kind == GAP or order is None:
            return LEARNT if kind == GOOD else kind
        return f"skip {order}"

    def _note(self) -> None:
        """Check what has become durable: it must be sound for any process that will use it."""
        for number in self.life.store.folder.numbers():
            if number not in self.known:
                manifest = self.life.store.manifest(number)
                self.known[number] = self._durable(manifest)
                self._check_durable(number)

    def _durable(self, manifest: Manifest) -> History:
        if manifest.reason in ORDERS:
            assert manifest.parent is not None
            if self.ordering is not None:
                skip = self.ordering
                order = f"rewind-{manifest.number}"
                self.skips.append(
                    Skip(order=order, partition=skip.partition, start=skip.start, end=skip.end, reason="bad")
                )
            self.ordering = None
            base = self.known[manifest.parent]
            return base.up_to(base.positions())
        assert manifest.parent == self.head, "it is said to come from another checkpoint than it does"
        self.head = manifest.number
        return self.history.up_to({Partition.parse(name): at for name, at in manifest.positions.items()})

    def _check_durable(self, number: int) -> None:
        life, history = self.life, self.known[number]
        parts = life.store.load(number)
        ledger = type(life.ledger)()
        ledger.restore(parts["ledger"])
        seen = Counter(place for call in parts["seen"].facts["calls"] for place in call)
        laws.agree(history, seen, ledger.statistics().partitions)
        letters = {place: f"bad {reason.value}" for place, reason in self.world.letters.items()}
        for word in BAD:
            for place in history.places(word):
                assert letters.get(place) == word, "it is durable, and its dead letter is not"
