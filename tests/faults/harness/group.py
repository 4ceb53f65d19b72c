"""A group of real processes that learn one model: each a `millrace run` with a folder and a config of its own."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from millrace.app.tools.local_broker.broker import free_port
from millrace.training.checkpoints.folder import Folder
from millrace.training.errors import MissingCheckpointError
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.topics import Topic

_WITHIN_S = 180.0
_LOOK_EVERY_S = 1.0
EMBEDDED = Path(__file__).with_name("embedded_model.py")
"""A model with an embedding; not imported here, as it loads TensorFlow."""


class WhatAGroupLearns:
    """What a group has learnt from its topic, by the one folder of checkpoints."""

    def __init__(self, topic: Topic, folder: Folder) -> None:
        self._topic = topic
        self.shelf = Shelf(folder)
        self.last_settled = 0
        """What `settled` returned last; any thread may read it."""

    def keep_running(self) -> None:
        """Start whoever has ended, as a kubelet does."""

    def tails(self) -> str:
        """Return the ends of all logs."""
        raise NotImplementedError

    def wait_until(self, condition: Callable[[], object], what: str, *, restart: bool = True) -> None:
        """Wait for a condition; meanwhile whoever ends is started again."""
        assert self.comes_true(condition, restart=restart), f"{what} did not come true; {self.tails()}"

    def comes_true(self, condition: Callable[[], object], *, restart: bool = True, within_s: float = _WITHIN_S) -> bool:
        """Wait for a condition as `wait_until` does; return whether it came true in time."""
        deadline, looked_at = time.monotonic() + within_s, 0.0
        while not condition():
            if time.monotonic() > deadline:
                return False
            if restart:
                self.keep_running()
            if time.monotonic() > looked_at + _LOOK_EVERY_S:  # writers go by it, who must not run far ahead
                self.settled()
                looked_at = time.monotonic()
            time.sleep(0.1)
        return True

    def settled(self) -> int:
        """Return how many offsets the newest checkpoint has settled; 0 before the first."""
        self.last_settled = self.shelf.settled()
        return self.last_settled

    def newest(self) -> Statement:
        """Return what the newest checkpoint states."""
        statement = self.shelf.newest()
        assert statement is not None
        return statement

    def assert_sound(self) -> int:
        """Compare weights, witness and ledger of every checkpoint on disk; return how many were compared."""
        contents = self.shelf.contents()
        assert not contents.bad
        compared = 0
        for number in contents.good:
            try:
                statement = self.shelf.statement(number)
            except MissingCheckpointError:  # the trainer has pruned it since
                continue
            compared += 1
            for partition, account in statement.ledger.items():
                seen = statement.seen.get(partition)
                learnt = 0 if seen is None else seen.count
                assert learnt == account.learnt == statement.ids[partition][0], (number, partition)
        assert compared
        return compared

    def assert_learnt_once(self) -> None:
        """Wait until a checkpoint stands at the topic's end; compare its weights with what was written."""
        topic = self._topic
        self.wait_until(lambda: self.settled() == topic.records, f"all of {topic.records} offsets are durable")
        statement = self.newest()
        self.assert_sound()
        for partition in range(topic.partitions):
            ids = list(topic.learnable(partition))
            assert statement.seen[partition] == topic.evidence(partition)
            assert statement.ids[partition] == (len(ids), sum(ids), sum(i * i for i in ids))


class GroupOfProcesses(WhatAGroupLearns):
    """The members, by their numbers. A context manager: whoever still runs at the end is killed."""

    def __init__(
        self,
        path: Path,
        topic: Topic,
        workers: int,
        *,
        timeout: str = "60s",
        cold_again: bool = False,
        **sections: Mapping[str, Any],
    ) -> None:
        """With `cold_again`, who begins again replaces itself by a new Python, as users' workers do."""
        self._cold_again = cold_again
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(workers)]
        self.projects = [
            Project(
                path / f"member-{index}",
                topic,
                **{
                    **sections,
                    "scale": {"workers": workers, "index": index, "addresses": self.addresses, "timeout": timeout},
                },
            )
            for index in range(workers)
        ]
        self.runs: list[Run | None] = [None] * workers
        super().__init__(topic, self.projects[0].folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        for run in self.runs:
            if run is not None:
                run.kill()

    @property
    def chief(self) -> Run:
        """The run of the chief."""
        return self.member(0)

    def member(self, index: int) -> Run:
        """Return the present run of a member."""
        run = self.runs[index]
        assert run is not None
        return run

    def start(self, *indices: int, failpoints: str = "", arguments: tuple[str, ...] = ()) -> None:
        """Start these members, or all."""
        for index in indices or range(len(self.projects)):
            self.runs[index] = Run(self.projects[index], *arguments, failpoints=failpoints, cold_again=self._cold_again)

    def keep_running(self) -> None:
        for index, run in enumerate(self.runs):
            if run is None or not run.alive:
                self.start(index)

    def tails(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- member {index}\n{run.tail()}" for index, run in enumerate(self.runs) if run is not None)
