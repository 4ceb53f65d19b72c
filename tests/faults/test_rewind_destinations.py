"""`millrace rewind --to` a time or an offset, of a trainer that runs and of one that does not, on a real Kafka."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.consumers.errors import DataLossError
from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.topics import Topic

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]
PARTITIONS, EACH = 2, 400
SKIPPED = range(450, 500)


def _rewind(project: Project, *arguments: str) -> Any:
    """Send the command and return its answer."""
    done = CliRunner().invoke(application, ["rewind", "-c", str(project.config), *arguments, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def _refused(project: Project, *arguments: str) -> DataLossError:
    done = CliRunner().invoke(application, ["rewind", "-c", str(project.config), *arguments])
    assert isinstance(done.exception, DataLossError), (done.output, done.exception)
    return done.exception


def _learn(run: Run, topic: Topic) -> int:
    """Write, learn and save one more batch of each partition; return the checkpoint's number."""
    topic.write(EACH)
    run.wait_for(lambda: run.settled() == topic.records, f"{topic.records} offsets were settled")
    status, answer = run.ask("POST", "/checkpoints?wait=60s")
    assert status == 201, answer
    return int(answer["checkpoint"]["number"])


def _remove_before(topic: Topic, partition: int, offset: int) -> None:
    """Remove records as retention does."""

    async def remove() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=topic.bootstrap)
        await admin.start()
        try:
            at = {TopicPartition(topic.name, partition): RecordsToDelete(before_offset=offset)}
            await admin.delete_records(at)
        finally:
            await admin.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, remove()).result(60)


def test_a_rewind_to_a_time_or_offset_learns_again_all_but_what_was_ever_skipped(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    made = project(topic, checkpoints={"every": "1h"})
    shelf = Shelf(made.folder)
    skip = f"{topic.name}:0:{SKIPPED.start}-{SKIPPED.stop - 1}"
    with Run(made) as run:
        first = _learn(run, topic)
        between = datetime.now(UTC).isoformat()
        _learn(run, topic)

        plan = _rewind(made, "--to", between, "--skip", skip, "--dry-run")
        assert (plan["to"], plan["gone"], plan["skipped"]) == (first, 0, len(SKIPPED))
        assert plan["replayed"] == PARTITIONS * EACH - len(SKIPPED)
        assert run.settled() == topic.records, "nothing was done"

        done = _rewind(made, "--to", between, "--skip", skip, "--reason", "a bad hour")["checkpoint"]
        assert (done["parent"], done["note"], done["positions"][f"{topic.name}:0"]) == (first, "a bad hour", EACH)
        ordered = f"rewind-{done['number']}"
        run.wait_for(lambda: run.settled() == topic.records, "all was settled again")
        (shown,) = run.status()["skips"]
        assert (shown["order"], shown["passed"], shown["ranges"]) == (ordered, len(SKIPPED), [skip])
        run.terminate()
        run.finish()

    plan = _rewind(made, "--to", f"{topic.name}:1:{EACH - 1}", "--dry-run")
    assert (plan["to"], plan["gone"], plan["skipped"]) == (0, 0, len(SKIPPED))
    assert _rewind(made, "--to", f"{topic.name}:1:{EACH - 1}")["checkpoint"]["parent"] == 0
    with Run(made, "--until", "now") as run:
        run.finish()
    end, learnt = shelf.newest(), set(range(2 * EACH))
    assert end is not None
    assert end.seen == {0: Evidence.of(sorted(learnt - set(SKIPPED))), 1: Evidence.of(sorted(learnt))}
    assert end.ledger[0].skipped == {ordered: len(SKIPPED)}

    _remove_before(topic, 1, 7)
    for further in (["--dry-run"], []):
        error = _refused(made, "--to", "0", *further)
        assert error.exit_code == 4
        assert f"offsets 0..6 of {topic.name}:1 are gone by retention" in str(error)
    assert shelf.newest_number() == end.number
    assert _rewind(made, "--to", str(end.number), "--dry-run")["gone"] == 0
