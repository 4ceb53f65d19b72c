"""Records that make a step or `preprocess` raise: set aside and counted, all others learnt once, and never a loop."""

import os
import signal

import numpy as np
import pytest

from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.reasons import Reason
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.kafka import Letter, dead_letters
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import NOWHERE, Mixture
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.topics import Topic

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(20)]
RAISING = Mixture(share=1.0, kinds=(Reason.STEP_RAISED,))
EXACT = {"deterministic": True, "max_wait": None, "replicas": 1, "shuffle": 512}
KILLS = ("careful.culprit", "fallback.before_restore", "fallback.after_restore")
PREPROCESS = """

def preprocess(features, label, weight):
    tf.debugging.assert_less(tf.where(features["id"] % 2 == 0, features["partition"], 0), PARTITIONS)
    return {**features, "x": tf.sin(features["x"])}, label, weight
"""
"""Raises on every other one of the records on which the step would."""


def _write(topic: Topic, records: int) -> None:
    """Write good records, with a raising one in the middle and one at the end."""
    topic.write(records // 2)
    topic.write(1, RAISING)
    topic.write(records // 2)
    topic.write(1, RAISING)


def _with_preprocess(made: Project) -> Project:
    path = made.path / "model.py"
    path.write_text(path.read_text() + PREPROCESS)
    return made


def _newest(made: Project) -> Statement:
    newest = Shelf(made.folder).newest()
    assert newest is not None
    return newest


def _all_is_as_it_should_be(made: Project, topic: Topic) -> None:
    newest = _newest(made)
    for partition in range(topic.partitions):
        account = newest.ledger[partition]
        assert account.set_aside == topic.set_aside(partition)
        assert newest.seen[partition] == topic.evidence(partition)
        assert account.balanced
        assert account.position == len(topic.verdicts[partition])
        ids = list(topic.learnable(partition))
        assert newest.ids[partition] == (len(ids), sum(ids), sum(i * i for i in ids)), "no half of an update stayed"


@pytest.mark.law
def test_what_raises_is_set_aside_without_a_restart_and_stays_so_after_one(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(2)
    create_topic(topic.bootstrap, f"{topic.name}-dead", 1)
    letters = {"dead_letters": {"topic": f"{topic.name}-dead"}}
    made = _with_preprocess(project(topic, records=letters, training={"replicas": 2}))
    _write(topic, 1000)
    with Run(made) as run:
        run.wait_for(lambda: run.settled() == topic.records, "all was settled")
        _write(topic, 200)
        run.wait_for(lambda: run.settled() == topic.records, "the rest was settled")
        records = run.status()["records"]
        assert records["set_aside"] == {"step_raised": 8}
        assert run.said("offset 500 is set aside: InvalidArgumentError in preprocess") >= 2, "one a partition"
        assert run.said("offset 1001 is set aside: InvalidArgumentError in the training step") >= 2, "one a partition"
        assert not run.said(str(NOWHERE)), "a record's value is in no line"
        run.terminate()
        run.finish()
    _all_is_as_it_should_be(made, topic)
    topic.write(100)
    with Run(made, "--until", "now") as run:
        run.finish()
        assert not run.said("going back to checkpoint")
    _all_is_as_it_should_be(made, topic)
    expected = {Letter(p, o, Reason.STEP_RAISED, topic.name) for p in range(2) for o in (500, 1001, 1102, 1203)}
    assert set(dead_letters(topic.bootstrap, f"{topic.name}-dead")) == expected


def test_where_that_is_ordered_it_ends_and_names_the_offsets_and_the_way_past_them(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream()
    made = project(topic, training={"on_step_error": "halt", "batch_size": 8, "batches_per_call": 1})
    topic.write(100)
    topic.write(1, RAISING)
    topic.write(100)
    with Run(made, "--until", "now") as run:
        assert run.exit_code() == 1
        line = run.log().splitlines()[-1]
        assert "millrace: error: InvalidArgumentError in the training step" in line
        assert "Traceback" not in run.log()
    order = line.rpartition("millrace rewind ")[2].split()
    assert order[0] == "-c", "what is printed is run as it is printed"
    done = run_forked(["rewind", *order], cwd=made.path, env=os.environ)
    assert done.returncode == 0, done.stderr
    with Run(made, "--until", "now") as run:
        run.finish()
    account = _newest(made).ledger[0]
    assert account.balanced
    assert account.position == 201
    assert 1 <= sum(account.skipped.values()) <= 8


def test_killed_in_the_middle_of_the_search_it_comes_to_the_same_bits(stream: MakeStream, project: MakeProject) -> None:
    topic = stream(poison=Mixture(share=0.004, kinds=(Reason.STEP_RAISED, Reason.UPDATE_NOT_FINITE)))
    _write(topic, 2000)
    until = ("--until", "now")
    undisturbed = _with_preprocess(project(topic, "undisturbed", training=EXACT, checkpoints={"every": "40 steps"}))
    killed = _with_preprocess(project(topic, "killed", training=EXACT, checkpoints={"every": "7 steps"}))
    with Run(undisturbed, *until) as beside:
        for point in KILLS:
            with Run(killed, *until, failpoints=f"{point}=kill") as run:
                assert run.exit_code() == -signal.SIGKILL, run.tail()
        with Run(killed, *until) as run:
            run.finish()
        beside.finish()
    resumed, whole = _newest(killed), _newest(undisturbed)
    for made in (killed, undisturbed):
        _all_is_as_it_should_be(made, topic)
    assert [key for key in whole.arrays if not np.array_equal(whole.arrays[key], resumed.arrays[key])] == []
