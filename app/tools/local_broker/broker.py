"""A single-node Apache Kafka in KRaft mode, broker and controller in one Java process, on loopback only.

Owns a folder (its data, properties, log and state file) and the process in it, through a lock on the folder that the
system releases when the owner ends. Runs on the caller's thread; `claim` takes the folder only, `start` returns when
the broker serves. A broker that a killed owner left running in the folder is stopped first: on Linux there is none, and
one that could be taken over would not die with its new owner. `stop` ends the broker in order, `kill` as a crash would;
the same object can then start again, on the same port, with the same data.
"""

import base64
import fcntl
import json
import os
import random
import socket
import struct
import uuid
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self

from millrace.app.tools.child_process import SupervisedProcess, end_left_behind, holds_within
from millrace.app.tools.local_broker.jars import (
    KAFKA_VERSION,
    FolderInUseError,
    JavaProgram,
    LocalBrokerError,
    PortTakenError,
    kafka_jars,
)

DEFAULT_FOLDER = Path(".millrace/broker")
_START_S = 60.0
_STOP_S = 15.0
_FORMAT_S = 60.0
# Below the ports that systems give to clients: a client that reconnects in a loop could take the broker's own port.
_FREE_PORTS = range(20_000, 32_000)
_given = set[int]()
"""The free ports that this process was given: nobody may listen on one yet."""

HOST = "127.0.0.1"

SINGLE_NODE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # Relative to the folder that Java runs in: Kafka would split an absolute path at a comma.
    "log.dirs": "data",
    # A single node holds one replica, and needs few internal partitions.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A group does not wait for more members.
    "group.initial.rebalance.delay.ms": "0",
    # A wrong topic name is an error, never a new topic.
    "auto.create.topics.enable": "false",
    # After a kill, the controller admits the broker again when its old session has expired: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}

_TIMEOUT_S = 2.0
_METADATA, _VERSION, _CORRELATION = 3, 2, 1
_NO_CLIENT_ID = -1
_NO_TOPICS = 0
_REQUEST = struct.pack(">hhihi", _METADATA, _VERSION, _CORRELATION, _NO_CLIENT_ID, _NO_TOPICS)


class LocalBroker:
    """A Kafka broker in a folder. A context manager: serving inside, stopped after."""

    def __init__(
        self,
        folder: Path | str = DEFAULT_FOLDER,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        repository: str | None = None,
        dies_with_parent: bool = True,
        version: str = KAFKA_VERSION,
    ) -> None:
        """Keep the description; nothing runs yet.

        Port 0 chooses a free port and keeps it. `settings` are Kafka's own and override ours. `repository` is a mirror
        of the Maven repository. With `dies_with_parent`, Linux kills the broker when the thread that started it ends.
        `version` is Kafka's; a folder belongs to one version.
        """
        self._folder = Path(folder).resolve()
        self._port = port
        self._settings = dict(settings or {})
        self._repository = repository
        self._dies_with_parent = dies_with_parent
        self._version = version
        self._process: SupervisedProcess | None = None
        self._lock: TextIOWrapper | None = None

    @property
    def folder(self) -> Path:
        """The folder with the broker's data and log."""
        return self._folder

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients; its port is 0 until a start has chosen one."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The id of the Java process."""
        if self._process is None:
            raise LocalBrokerError(f"no broker runs in {self._folder}; start it first")
        return self._process.pid

    def running(self) -> bool:
        """Return whether the broker's process runs."""
        return self._process is not None and self._process.alive

    def claim(self) -> None:
        """Take the folder, and start nothing yet. FolderInUseError where another process has it."""
        if self._lock is None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                lock = (self._folder / "lock").open("a")
            except OSError as error:
                raise LocalBrokerError(
                    f"cannot write in {self._folder}: {error.strerror}; choose another --folder"
                ) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.close()
                where = self._read_state().get("port", "?")
                raise FolderInUseError(
                    f"another process runs the broker in {self._folder}, on {HOST}:{where}; use that one, stop it, "
                    "or choose another --folder"
                ) from error
            self._lock = lock

    def start(self, deadline: float = _START_S) -> None:
        """Start the broker and wait until it serves, at most `deadline` seconds; a first download comes on top."""
        if self.running():
            raise FolderInUseError(f"the broker in {self._folder} is already started")
        self.claim()
        try:
            end_left_behind(self._read_state().get("pid", 0), str(self._properties), _STOP_S)
            self._process = self._launch(kafka_jars(self._repository, self._version))
            self._wait_until_ready(self._process, deadline)
        except BaseException:
            self.kill()
            raise

    def stop(self, deadline: float = _STOP_S) -> None:
        """End the broker in order; kill it when that takes longer than `deadline` seconds."""
        if self._process is not None:
            self._process.end(deadline)
        self._release()

    def kill(self) -> None:
        """End the broker as a crash would. It can be started again in the same folder."""
        if self._process is not None:
            self._process.kill()
        self._release()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; `config` holds Kafka's own settings of topics."""
        from millrace.app.tools.local_broker.topics import create_topic  # noqa: PLC0415 - slow to import, and often unused

        create_topic(self.bootstrap_servers, name, partitions, config)

    def last_words(self) -> str:
        """Return the last message in the broker's log, its exit code if it has ended, and where the log is."""
        return "the broker was not started" if self._process is None else self._process.last_words()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _state(self) -> Path:
        return self._folder / "broker.json"

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"

    def _release(self) -> None:
        self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _launch(self, jars: Path) -> SupervisedProcess:
        if self._port == 0:
            self._port = free_port()
        elif not is_free(self._port):
            raise PortTakenError(
                f"port {self._port} on {HOST} is taken by another program; choose another with --port, "
                "or --port 0 for any that is free"
            )
        self._properties.write_text(server_properties(self._port, free_port(besides=self._port), self._settings))
        self._log.write_bytes(b"")
        if not self._formatted.exists():
            arguments = ["format", "--cluster-id", _new_cluster_id(), "--config", str(self._properties)]
            tool = JavaProgram(jars=jars, main="kafka.tools.StorageTool", arguments=arguments, folder=self._folder)
            tool.run(self._log, _FORMAT_S)
        kafka = JavaProgram(jars=jars, main="kafka.Kafka", arguments=[str(self._properties)], folder=self._folder)
        process = kafka.start(self._log, dies_with_parent=self._dies_with_parent)
        self._state.write_text(json.dumps({"pid": process.pid, "port": self._port}))
        return process

    @property
    def _formatted(self) -> Path:
        return self._folder / "data" / "meta.properties"

    def _wait_until_ready(self, process: SupervisedProcess, deadline: float) -> None:
        cluster = self._cluster_id()
        holds_within(lambda: not process.alive or ready_cluster(HOST, self._port) == cluster, deadline)
        if not process.alive:
            raise LocalBrokerError(f"the broker ended while it started: {process.last_words()}")
        if ready_cluster(HOST, self._port) != cluster:
            raise LocalBrokerError(
                f"the broker on {self.bootstrap_servers} does not serve within {deadline:.0f} s: {process.last_words()}"
            )

    def _cluster_id(self) -> str | None:
        if not self._formatted.exists():
            return None
        pairs = (line.partition("=") for line in self._formatted.read_text().splitlines())
        return next((value.strip() for key, _, value in pairs if key.strip() == "cluster.id"), None)

    def _read_state(self) -> Mapping[str, int]:
        try:
            state: dict[str, int] = json.loads(self._state.read_text())
        except (OSError, ValueError):  # not there yet, or torn when its writer was killed
            return {}
        return state


def _new_cluster_id() -> str:
    """Return 16 random bytes in Kafka's form, without a dash at the beginning: it would be read as an option."""
    encoded = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return encoded if not encoded.startswith("-") else _new_cluster_id()


def free_port(besides: int = 0) -> int:
    """Return a port on loopback that no program listens on, never the same twice, and that is not `besides`."""
    for port in random.Random(os.urandom(8)).sample(_FREE_PORTS, 100):  # noqa: S311 - no secret
        if port != besides and port not in _given and is_free(port):
            _given.add(port)
            return port
    raise PortTakenError(f"no free port found on {HOST}; choose one with --port")


def is_free(port: int) -> bool:
    """Return whether no program listens on this port of loopback."""
    with socket.socket() as probe:
        # As Kafka does: a connection that was closed a moment ago must not make the port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def server_properties(port: int, controller_port: int, settings: Mapping[str, str]) -> str:
    """Return the properties for these ports; `settings` override them."""
    listening = {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
    }
    return "".join(f"{key}={value}\n" for key, value in {**SINGLE_NODE, **listening, **settings}.items())


def ready_cluster(host: str, port: int) -> str | None:
    """Return the id of the cluster that answers with a broker ready to serve; None where none does yet.

    One Metadata request, version 2, over a plain socket: it costs a millisecond, needs no event loop and logs nothing
    while there is no answer.
    """
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (size,) = struct.unpack(">i", _receive(connection, 4))
            return _cluster_id(_receive(connection, size))
    except (OSError, struct.error, UnicodeDecodeError):  # no program answers, or one that does not speak Kafka
        return None


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the answer ended early")
        received += part
    return received


def _cluster_id(answer: bytes) -> str | None:
    _, brokers = struct.unpack_from(">ii", answer)
    at = 8
    for _ in range(brokers):
        at = _after_text(answer, at + 4)  # its number, then its host
        at = _after_text(answer, at + 4)  # its port, then its rack
    (length,) = struct.unpack_from(">h", answer, at)
    return answer[at + 2 : at + 2 + length].decode() if brokers > 0 and length > 0 else None


def _after_text(answer: bytes, at: int) -> int:
    length: int = struct.unpack_from(">h", answer, at)[0]
    return at + 2 + max(length, 0)
