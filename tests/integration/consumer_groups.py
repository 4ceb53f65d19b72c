"""`kafka-consumer-groups`, as Kafka itself has it: one more jar beside those of the local broker."""

import os
from dataclasses import dataclass
from pathlib import Path

from jgo.constants import MAVEN_CENTRAL_URL
from jgo.maven import MavenContext

from millrace.app.tools.local_broker.jars import KAFKA_VERSION, REPOSITORY_VARIABLE, JavaProgram, kafka_jars

_TOOLS = f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}"
_MAIN = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_WITHIN_S = 120.0


@dataclass(frozen=True, kw_only=True)
class GroupLag:
    """What the tool says of a partition."""

    current: int
    end: int
    lag: int


def describe(bootstrap: str, group: str, folder: Path) -> dict[str, GroupLag]:
    """Run `kafka-consumer-groups --describe`; return its lines by `topic:partition`."""
    log = folder / "consumer-groups.log"
    arguments = ["--bootstrap-server", bootstrap, "--describe", "--group", group]
    tool = JavaProgram(jars=_with_the_tools(folder), main=_MAIN, arguments=arguments, folder=folder)
    tool.run(log, _WITHIN_S)
    rows = [line.split() for line in log.read_text().splitlines() if line.startswith(f"{group} ")]
    return {f"{row[1]}:{row[2]}": GroupLag(current=int(row[3]), end=int(row[4]), lag=int(row[5])) for row in rows}


def _with_the_tools(folder: Path) -> Path:
    """Return a folder with links to all jars; those of the tools are cached beside the broker's."""
    jars, flat = kafka_jars(), folder / "jars"
    flat.mkdir()
    for jar in (*jars.glob("*.jar"), _tools_jar(jars.with_name(f"kafka-tools-{KAFKA_VERSION}"))):
        (flat / jar.name).symlink_to(jar)
    return flat


def _tools_jar(cache: Path) -> Path:
    repository = os.environ.get(REPOSITORY_VARIABLE, MAVEN_CENTRAL_URL).rstrip("/")
    if repository.startswith("http"):
        context = MavenContext(repo_cache=cache, remote_repos={"maven": repository})
    else:
        context = MavenContext(repo_cache=cache, local_repos=[Path(repository).expanduser()], offline=True)
    return Path(context.create_dependency(_TOOLS).artifact.resolve())
