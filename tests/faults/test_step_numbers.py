"""The numbers of a step that are left to auto: settled once by a lineage, whatever is killed, and whatever comes."""

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.process import Run
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(1)]
AUTO: Mapping[str, Any] = {"batch_size": "auto", "deterministic": True, "max_wait": None, "replicas": 1}
SMALL = "training.batch_size: auto: 8 rows a step, 4 passes, a memory of 300 records: "


def test_numbers_are_settled_once_whatever_is_killed_and_whatever_comes(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(2)
    topic.write(300)
    made = project(topic, training=AUTO, checkpoints={"every": "1h"})
    shelf = Shelf(made.folder)
    with Run(made, failpoints="start.before_zero=kill") as run:
        assert run.exit_code() == -signal.SIGKILL, run.tail()
    assert shelf.numbers() == []
    with Run(made, failpoints="call.settled=kill") as run:
        assert run.exit_code() == -signal.SIGKILL, run.tail()
        assert run.said(f"{SMALL}The topic holds 600 records")
    assert shelf.numbers() == [0]

    topic.write(40_000)  # so many that a lineage that begins now gets larger batches
    with Run(made, "--max-records", "256") as run:
        run.finish()
        assert run.said(f"{SMALL}as in checkpoint 0")
    newest = shelf.numbers()[-1]
    words = ["rebuild", "-c", str(made.config), str(newest)]
    rebuilt = run_forked(words, cwd=made.path, env=os.environ, timeout=180)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert "256 records of 8 blocks" in rebuilt.stdout, "of four batches of 8"
    assert "equal, bit for bit" in rebuilt.stdout

    with Run(made, "--start-over", "--max-records", "64") as run:
        run.finish()
        assert run.said("training.batch_size: auto: 32 rows a step, 8 passes, a memory of 300 records: The topic holds")
    with Run(made, "--max-records", "64") as run:
        run.finish()
        assert run.said("auto: 32 rows a step, 8 passes, a memory of 300 records: as in checkpoint")
