"""Witness D: a model that was killed and resumed is, to the bit, the one that never was."""

import signal

import numpy as np
import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.process import Run
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.timeout(900)]
RECORDS = 30_000
EXACT = {"deterministic": True, "max_wait": None, "replicas": 1, "shuffle": 512}
KILLS = ("call.after=kill:after=9", "save.before_manifest=kill:after=2", "save.after_rename=kill:after=1")


def test_a_resumed_run_with_dropout_is_bit_identical_to_an_undisturbed_one(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(poison=Mixture(share=0.002))
    topic.write(RECORDS)
    until = ("--until", f"{topic.name}:0={RECORDS}")
    undisturbed = project(topic, "undisturbed", training=EXACT, checkpoints={"every": "150 steps"})
    killed = project(topic, "killed", training=EXACT, checkpoints={"every": "7 steps"})

    with Run(undisturbed, *until) as beside:
        for failpoints in KILLS:
            with Run(killed, *until, failpoints=failpoints) as run:
                assert run.exit_code() == -signal.SIGKILL, run.tail()
        with Run(killed, *until) as run:
            run.finish()
        beside.finish()

    resumed, whole = Shelf(killed.folder).newest(), Shelf(undisturbed.folder).newest()
    assert resumed is not None
    assert whole is not None
    assert resumed.manifest.step == whole.manifest.step
    assert resumed.seen == whole.seen == {0: topic.evidence(0)}
    assert resumed.arrays.keys() == whole.arrays.keys()
    assert any("seed" in key for key in whole.arrays), "the model draws random numbers"
    assert [key for key in whole.arrays if not np.array_equal(whole.arrays[key], resumed.arrays[key])] == []
