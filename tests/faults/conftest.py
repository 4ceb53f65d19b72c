"""Topics with one writer each, and projects that learn from them."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
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
