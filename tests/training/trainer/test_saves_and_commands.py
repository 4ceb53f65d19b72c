"""Saves beside commands: a save belongs to the history in which it was asked for, and keeps where partitions joined."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.training.checkpoints.manifest import SaveReason
from millrace.training.commands import Rewind, Save
from millrace.training.errors import CheckpointError, NotOneStateError
from millrace.training.group.one_state import portion
from millrace.training.telemetry.phases import Phase
from tests.training.conftest import FEATURES
from tests.training.trainer_rig import P0, P1, SHARE, RigOptions, Run, Topic, running

pytestmark = pytest.mark.tensorflow


def _answer(sent: "Future[Any]") -> Any:
    return sent.result(20)


def test_a_save_that_waits_during_a_rewind_is_of_what_was_learnt_before_it(
    tmp_path: Path,
) -> None:
    topic, disk, begun = Topic(P0), threading.Event(), threading.Event()

    def before_manifest(order: Any) -> None:
        if order.parent is not None:
            begun.set()
            assert disk.wait(20)

    with running(tmp_path, topic, before_manifest=before_manifest) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        first = run.commands.send(Save())
        assert begun.wait(20)
        topic.produce(SHARE)
        run.reaches(2 * SHARE)
        waiting = run.commands.send(Save())
        run.sees(lambda: run.saving._waiting)
        rewound = run.commands.send(Rewind(to=0))
        run.sees(lambda: run.phases.phase is Phase.RESTORING)
        disk.set()
        assert _answer(first).positions == {"clicks:0": SHARE}
        assert _answer(waiting).positions == {"clicks:0": 2 * SHARE}
        assert _answer(waiting).parent == _answer(first).number
        assert _answer(rewound).parent == 0
        assert _answer(rewound).number > _answer(waiting).number


@contextmanager
def idle(root: Path, **options: Any) -> Iterator[Run]:
    """Bring the state of a trainer up to number 0, whose thread does not run: the test does what it would do."""
    run = Run(root, Topic(P0, P1), RigOptions(**options))
    try:
        run.saving.begin_or_restore(lambda: {P0: 0, P1: 0}, start_over=False)
        yield run
        run.saving._writer.close(20)
    finally:
        run.leave()


@pytest.mark.row(31)
def test_what_the_chief_of_a_group_accounts_for_is_never_saved_as_the_whole(tmp_path: Path) -> None:
    disk = threading.Event()

    def before_manifest(order: Any) -> None:
        assert order.parent is None or disk.wait(20)

    with idle(tmp_path, before_manifest=before_manifest) as run:
        whole = {"ledger": run.ledger.snapshot()}
        run.ledger.restore(portion(run.ledger.snapshot(), [P0]))
        run.saving.holds_portion = True
        with pytest.raises(NotOneStateError, match="a portion of the partitions only, so nothing is saved"):
            run.saving.begin(SaveReason.DEMAND)
        running, waiting = Save(), Save()
        for command in (running, waiting):
            run.saving.begin(SaveReason.DEMAND, command, whole)
        prepared = run.saving.prepare_rewind(Rewind(to=0))
        disk.set()
        rewound = run.saving.publish_rewind(prepared)
        assert _answer(running.answer).number == 1
        with pytest.raises(CheckpointError, match="a later rewind has cancelled the save"):
            _answer(waiting.answer)
        assert rewound.number == 2
        assert {len(run.store.manifest(number).positions) for number in (1, 2)} == {2}


def test_a_last_save_follows_one_that_was_too_slow_and_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()

    def before_manifest(order: Any) -> None:
        assert order.parent is None or disk.wait(20)

    with idle(tmp_path, before_manifest=before_manifest) as run:
        writer, slow = run.saving._writer, Save()
        cancel_or_settle = writer.cancel_or_settle

        def cancel_at_once(_deadline_s: float) -> None:
            cancel_or_settle(0.0)
            threading.Timer(0.05, disk.set).start()

        run.saving.begin(SaveReason.DEMAND, slow)
        with monkeypatch.context() as patched:
            patched.setattr(writer, "cancel_or_settle", cancel_at_once)
            run.saving.finish()
        with pytest.raises(CheckpointError, match="cancelled by a later command"):
            _answer(slow.answer)
        assert run.saving.last is not None
        assert (run.saving.last.manifest.reason, run.store.newest()) == ("stop", run.saving.last.manifest)


def test_where_a_partition_joined_survives_a_stop_without_a_settled_record(tmp_path: Path) -> None:
    with running(tmp_path, Topic(P0)):
        pass
    with running(tmp_path, Topic(P0), newcomers={P1: 7}) as joined:
        joined.stop()
    with running(tmp_path, Topic(P0), newcomers={P1: 99}) as again:
        assert again.ledger.positions() == {P0: 0, P1: 7}


def test_each_checkpoint_carries_the_live_metrics_of_its_instant(tmp_path: Path) -> None:
    topic = Topic(P0)
    with running(tmp_path, topic) as run:
        zero = run.store.manifest(0)
        assert (zero.metrics, zero.measured is not None and zero.measured.records) == ({}, 0)
        topic.produce(SHARE)
        run.reaches(SHARE)
        saved = run.ask(Save())
        live = run.live.look()
        assert saved.metrics == live.values != {}
        assert saved.measured is not None
        assert (saved.measured.watched, saved.measured.records) == (live.watch.name, SHARE)
        assert saved.measured.baseline == live.baseline
        assert run.store.manifest(saved.number) == saved
        rewound = run.ask(Rewind(to=saved.number))
        assert (rewound.metrics, rewound.measured) == (saved.metrics, saved.measured)
        after = run.ask(Save())
        assert (after.metrics, after.measured is not None and after.measured.records) == ({}, 0), "a new window"


def test_a_beginning_is_published_as_it_was_prepared_and_a_resume_prepares_nothing(tmp_path: Path) -> None:
    calls: list[int] = []

    def prepare(learner: Any) -> dict[str, Any]:
        calls.append(1)
        learner.model.trainable_variables[0].assign_add(np.ones((FEATURES, 8), np.float32))
        return {"initial_weights": {"kept": 1}}

    with running(tmp_path, Topic(P0), prepare=prepare) as first:
        weights = first.learner.model.trainable_variables[0].numpy()
        assert first.begun_at.provenance == {"model": "mlp", "initial_weights": {"kept": 1}}
        stored = first.store.load(0, only={"model"})["model"].arrays
        assert any(np.array_equal(array, weights) for array in stored.values())
    with running(tmp_path, Topic(P0), prepare=prepare) as again:
        assert np.array_equal(again.learner.model.trainable_variables[0].numpy(), weights)
    assert len(calls) == 1
