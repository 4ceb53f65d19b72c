"""Saves beside commands: a save belongs to the history in which it was asked for, and keeps where partitions joined."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.training.commands import Rewind, Save
from millrace.training.telemetry.phases import Phase
from tests.training.conftest import FEATURES
from tests.training.trainer_rig import P0, P1, SHARE, Topic, running

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
