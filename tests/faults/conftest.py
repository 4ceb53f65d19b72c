"""Topics with one writer each, and projects that learn from them."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shared import SharedTrainer
from tests.faults.harness.station import Station
from tests.faults.harness.topics import Topic

MakeStream = Callable[..., Topic]
MakeProject = Callable[..., Project]
_SEED = 11


@pytest.fixture
def stream(broker: str) -> Iterator[MakeStream]:
    """Make a topic of a test's own; poison only where it is asked for."""
    with ExitStack() as stack:

        def make(partitions: int = 1, poison: Mixture | None = None) -> Topic:
            name = f"f-{uuid.uuid4().hex[:10]}"
            return stack.enter_context(Topic(broker, name, partitions, poison or Mixture(), _SEED))

        yield make


@pytest.fixture
def project(tmp_path: Path) -> MakeProject:
    """Make a folder with model and config, whose sections may be added to."""

    def make(topic: Topic, name: str = "project", **sections: Any) -> Project:
        return Project(tmp_path / name, topic, **sections)

    return make


@pytest.fixture(scope="module")
def harmable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """Start a broker for a file's own tests, to be harmed, with a proxy before it."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


@pytest.fixture
def station(harmable: Station) -> Station:
    """Return the same broker, made whole whatever the test before has left."""
    harmable.make_whole()
    return harmable


def _shared(station: Station, bootstrap: str, folder: Path) -> Iterator[SharedTrainer]:
    with Topic(station.straight, f"f-{uuid.uuid4().hex[:10]}", 2, Mixture(), _SEED) as topic:
        made = Project(folder, topic, kafka={"bootstrap_servers": [bootstrap]}, memory={"limit": "1MiB"})
        with SharedTrainer(made, topic) as trainer:
            yield trainer


@pytest.fixture(scope="module")
def straight_trainer(harmable: Station, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedTrainer]:
    """Start a trainer that connects to the broker itself."""
    yield from _shared(harmable, harmable.straight, tmp_path_factory.mktemp("straight"))


@pytest.fixture(scope="module")
def proxied_trainer(harmable: Station, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedTrainer]:
    """Start a trainer that connects to the broker through the proxy."""
    yield from _shared(harmable, harmable.proxied, tmp_path_factory.mktemp("proxied"))


@pytest.fixture
def straight(station: Station, straight_trainer: SharedTrainer) -> SharedTrainer:
    """Return the trainer that connects to the broker itself, ready."""
    straight_trainer.make_ready()
    return straight_trainer


@pytest.fixture
def proxied(station: Station, proxied_trainer: SharedTrainer) -> SharedTrainer:
    """Return the trainer that connects through the proxy, ready."""
    proxied_trainer.make_ready()
    return proxied_trainer
