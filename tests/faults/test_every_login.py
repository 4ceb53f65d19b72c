"""A stream of 100,000 records through each way to log in: all of it is learnt, once."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness.locked import USER, SecuredBroker, secured
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.topics import Topic

pytestmark = [
    *(pytest.mark.slow, pytest.mark.broker, pytest.mark.nightly),
    *(pytest.mark.timeout(600), pytest.mark.row(45)),
]
RECORDS, PARTITIONS = 100_000, 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured(tmp_path_factory.mktemp("secured"), {USER: "right-1"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(broker: SecuredBroker) -> Iterator[Topic]:
    with Topic(broker.owner, f"logins-{uuid.uuid4().hex[:8]}", PARTITIONS, Mixture(), 0) as topic:
        topic.write(RECORDS)
        yield topic


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        *(("LOCKED", "PLAIN"), ("LOGIN", "PLAIN"), ("LOGIN", "SCRAM-SHA-512")),
        *(("OAUTH", "OAUTHBEARER"), ("TLS", "PLAIN"), ("MUTUAL", "PLAIN")),
    ],
)
def test_a_hundred_thousand_records_are_learnt_once_through_each_login(
    broker: SecuredBroker, topic: Topic, tmp_path: Path, listener: str, mechanism: str
) -> None:
    project = Project(tmp_path / "project", topic, kafka=broker.kafka(listener, mechanism=mechanism))
    for principal in (f"User:{USER}", "User:client", "User:trainer", "User:ANONYMOUS"):
        broker.permit(principal, "Read", "topic", topic.name)
        broker.permit(principal, "Read", "group", project.group)
    with Run(project, "--until", "now") as run:
        run.finish()
    end = Shelf(project.folder).newest()
    assert end is not None
    assert [end.seen[number] for number in range(PARTITIONS)] == [
        topic.evidence(number) for number in range(PARTITIONS)
    ]
