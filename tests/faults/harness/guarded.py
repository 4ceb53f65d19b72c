"""A trainer that asks for tokens, has probes of their own, and learns a stream: what strangers are let loose on."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.app.tools.local_broker.broker import free_port
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.topics import Topic

OWNER = "ops"
_RECORDS_PER_S = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The process, and what is known of it."""

    run: Run
    project: Project
    topic: Topic
    token: str
    probes_port: int

    @property
    def url(self) -> str:
        """Where everything is answered."""
        return f"http://127.0.0.1:{self.project.port}"

    @property
    def probes(self) -> str:
        """Where probes alone are."""
        return f"http://127.0.0.1:{self.probes_port}"

    @property
    def bearer(self) -> dict[str, str]:
        """The header that opens the door."""
        return {"authorization": f"Bearer {self.token}"}


@contextmanager
def guarded(bootstrap: str, folder: Path) -> Iterator[Guarded]:
    """Yield a trainer that is at work inside the block."""
    token, tokens, probes_port = uuid.uuid4().hex, folder / "tokens", free_port()
    tokens.mkdir(parents=True)
    (tokens / OWNER).write_text(token)
    with Topic(bootstrap, f"g-{uuid.uuid4().hex[:10]}", 2, Mixture(), seed=11) as topic:
        topic.flow(_RECORDS_PER_S)
        api = {"tokens_dir": "./tokens", "probes": f"127.0.0.1:{probes_port}"}
        project = Project(folder, topic, api=api)
        with Run(project) as run:
            run.wait_for_first_call()
            run.wait_for(run.ready, "it was ready")
            yield Guarded(run=run, project=project, topic=topic, token=token, probes_port=probes_port)
