"""What every test may ask for: a broker for the session, topics of its own, records in them, and waiting."""

import ast
import asyncio
import gc
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker import broker as local_broker
from millrace.app.tools.local_broker.broker import HOST, SINGLE_NODE, free_port, ready_cluster
from millrace.consumers.suggested_command import name_config
from tests import lanes
from tests.consumers.archive.s3_server import S3Server
from tests.durations import is_long
from tests.faults.matrix.skips import judged
from tests.shared_broker import SharedBroker, address_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browsing import NewPage

T = TypeVar("T")
Value = bytes | None | tuple[int, bytes | None]
KAFKA_IMAGE = "apache/kafka:4.1.0"
BOOTSTRAP = "MILLRACE_TEST_BOOTSTRAP"
"""The variable that names a broker from outside."""
# Kafka compacts and retires segments every few seconds here, not every few minutes: tests wait for it.
EAGER = {
    "log.cleaner.backoff.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
}


settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # a busy machine, or a first example that imports, is no fault

_SHARED = pytest.StashKey[SharedBroker]()
_THRESHOLDS = (20_000, 10, 20)
"""How many new objects the garbage collector waits for: a traced graph is thousands, and no garbage."""


def _uncollected(parse: Callable[..., ast.AST]) -> Callable[..., ast.AST]:
    """Return the function with the garbage collector off within.

    CPython 3.11 before 3.11.8 fails with "AST constructor recursion depth mismatch" where it logs the error of a future
    that it collects while it parses: a traceback that is written parses too. Hypothesis parses in each test.
    """

    @wraps(parse)
    def parsed(*args: Any, **options: Any) -> ast.AST:
        collected = gc.isenabled()
        gc.disable()
        try:
            return parse(*args, **options)
        finally:
            if collected:
                gc.enable()

    return parsed


def pytest_configure() -> None:
    """Collect no garbage while modules are imported: looking for it would be a fifth of the work.

    Nor let Kafka optimize what it runs for minutes at most: that is a third of the work of its start.
    """
    # Lanes draw ports of their own: one that a lane was given may be free until something is started again on it.
    lane, lanes = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    local_broker._FREE_PORTS = local_broker._FREE_PORTS[int(lane.removeprefix("gw")) :: int(lanes)]
    gc.disable()
    mock.patch.object(ast, "parse", _uncollected(ast.parse)).start()
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """For a module and no longer: its driver keeps a loop in this thread, where the next tests run their own."""
    from tests.browsing import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def new_page(browser: "Browser") -> Iterator["NewPage"]:
    from tests.browsing import pages

    with pages(browser) as new_page:
        yield new_page


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what needs the broker, and what is slow by the ledger or a browser; order a lane's tests.

    The markers come before `-m` is asked.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "broker" in fixtures:
            item.add_marker(pytest.mark.broker)
        if "browser" in fixtures or is_long(item.nodeid):
            item.add_marker(pytest.mark.slow)
    yield
    if hasattr(config, "workerinput"):
        place = lanes.places([item.nodeid for item in items])
        items.sort(key=lambda item: place[item.nodeid])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "lanes.Shares | None":
    """Share the tests out to lanes as `tests/lanes.py` says."""
    return lanes.Shares(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what is skipped where the one list of skips does not permit it."""
    return judged((yield))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lay out three logical CPU devices where a collected module has loaded TensorFlow, before any test computes.

    What has been imported stays, so the garbage collector need not look at it again with each test.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)


class WaitFor(Protocol):
    """Wait for a condition and give what it answered."""

    def __call__(self, condition: Callable[[], T], timeout: float = 20.0) -> T: ...


class MakeTopic(Protocol):
    """Create a topic; `retention_ms=1000` means Kafka's `retention.ms`."""

    def __call__(self, partitions: int = 1, **config: object) -> str: ...


class Produce(Protocol):
    """Write values, bare ones to partition 0, and give the partition and offset of each."""

    def __call__(
        self, topic: str, values: Sequence[Value], *, timestamps: Sequence[int] | None = None
    ) -> list[tuple[int, int]]: ...


def _wait_for(condition: Callable[[], T], timeout: float = 20.0) -> T:
    end = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() >= end:
            raise AssertionError(f"still {answer!r} after {timeout} s")
        time.sleep(0.01)
    return answer


@pytest.fixture(scope="session")
def wait_for() -> WaitFor:
    """Wait for a condition under a finite timeout."""
    return _wait_for


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs in this process leaves the logs of all other tests as they were.

    The stream that it logs to is closed with it. Whoever logs a line later, and be it a thread between two tests or the
    garbage collector, would meet that closed stream.
    """
    root, aiokafka = logging.getLogger(), logging.getLogger("aiokafka")
    handlers, levels = list(root.handlers), (root.level, aiokafka.level)
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(levels[0])
    aiokafka.setLevel(levels[1])
    logging.captureWarnings(capture=False)


@pytest.fixture(autouse=True)
def config_name() -> Iterator[None]:
    """A command that runs in this process leaves its config file's name in the messages of no other test."""
    yield
    name_config(None)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Give a server of S3 on loopback."""
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of a place in a new bucket, which this process and its children reach."""
    from fsspec import filesystem

    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    name = f"archive-{uuid.uuid4().hex[:8]}"
    filesystem("s3").mkdir(name)
    return f"s3://{name}/of/tests"


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The session's Kafka, one for all lanes: an address from outside, else a container, else a local broker."""
    given, shared = os.environ.get(BOOTSTRAP), getattr(request.config, "workerinput", {}).get("broker")
    if given:
        yield given
    elif shared is not None:
        yield address_of(Path(shared))
    else:
        with _broker_of_ours(tmp_path_factory.mktemp("broker")) as address:
            yield address


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each lane where to ask for the one broker; the controller of xdist runs this before it starts the lane."""
    if _SHARED not in node.config.stash:
        node.config.stash[_SHARED] = SharedBroker(Path(tempfile.mkdtemp(prefix="millrace-broker-")), _broker_of_ours)
    node.workerinput["broker"] = str(node.config.stash[_SHARED].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the lanes' broker."""
    if (shared := config.stash.get(_SHARED, None)) is not None:
        shared.end()
        shutil.rmtree(shared.folder, ignore_errors=True)


@contextmanager
def _broker_of_ours(folder: Path) -> Iterator[str]:
    if _docker_answers():
        yield from _container()
    else:
        with LocalBroker(folder, settings=EAGER) as local:
            yield local.bootstrap_servers


def _docker_answers() -> bool:
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        return False
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=2)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except DockerException:
        return False


def _container() -> Iterator[str]:
    """Kafka's own image, listening inside on the port that it has outside: brokers call themselves by it too."""
    from testcontainers.core.container import DockerContainer

    port = free_port()
    settings = {
        **{key: value for key, value in SINGLE_NODE.items() if key != "log.dirs"},
        **EAGER,
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://localhost:{port}",
        "controller.quorum.voters": "1@localhost:9093",
    }
    container = DockerContainer(KAFKA_IMAGE).with_bind_ports(port, port)
    for key, value in settings.items():
        container.with_env(f"KAFKA_{key.upper().replace('.', '_')}", value)
    with container:
        _wait_for(lambda: ready_cluster(HOST, port), timeout=60)
        yield f"{HOST}:{port}"


@pytest.fixture
def topic(broker: str) -> MakeTopic:
    """A factory of topics that no other test has."""
    from millrace.app.tools.local_broker.topics import create_topic

    def make(partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        create_topic(broker, name, partitions, {key.replace("_", "."): str(value) for key, value in config.items()})
        return name

    return make


@pytest.fixture
def produce(broker: str) -> Produce:
    """A writer of records, which returns when the broker has them."""

    def write(topic: str, values: Sequence[Value], *, timestamps: Sequence[int] | None = None) -> list[tuple[int, int]]:
        with ThreadPoolExecutor(1) as pool:  # so that it works inside a running event loop too
            return pool.submit(asyncio.run, _send(broker, topic, values, timestamps)).result(timeout=120)

    return write


async def _send(
    bootstrap_servers: str, topic: str, values: Sequence[Value], timestamps: Sequence[int] | None
) -> list[tuple[int, int]]:
    from aiokafka import AIOKafkaProducer

    by_partition: dict[int, list[int]] = defaultdict(list)
    for index, value in enumerate(values):
        by_partition[value[0] if isinstance(value, tuple) else 0].append(index)
    written = [(-1, -1)] * len(values)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers, max_batch_size=512 * 1024) as producer:
        for partition, indices in by_partition.items():
            for batch in _batches(producer, values, timestamps, indices):
                builder, members = batch
                sent = await (await producer.send_batch(builder, topic, partition=partition))
                for place, index in enumerate(members):
                    written[index] = (partition, sent.offset + place)
    return written


def _batches(
    producer: Any, values: Sequence[Value], timestamps: Sequence[int] | None, indices: Sequence[int]
) -> Iterator[tuple[Any, list[int]]]:
    builder, members = producer.create_batch(), list[int]()
    for index in indices:
        value = values[index]
        record = {
            "key": None,
            "value": value[1] if isinstance(value, tuple) else value,
            "timestamp": timestamps[index] if timestamps is not None else None,
        }
        if builder.append(**record) is None:
            yield builder, members
            builder, members = producer.create_batch(), []
            builder.append(**record)
        members.append(index)
    if members:
        yield builder, members
