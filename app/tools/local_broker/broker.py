"""A single-node Apache Kafka in KRaft mode, broker and controller in one Java process, on loopback only.

Owns a folder (its data, properties, log and state file) and the process in it, through a lock on the folder that is
gone when the owner is. Runs on the caller's thread; `claim` takes the folder alone, `start` returns when the broker
serves. One that a killed owner
left running in the folder is adopted if it answers where it is wanted, else stopped. Ends with `stop` (in order) or
`kill` (as a crash would); the same object can then start again, on the same port, with the same data.
"""

import base64
import fcntl
import json
import os
import random
import socket
import uuid
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self

from app.tools.local_broker.errors import FolderInUseError, LocalBrokerError, PortTakenError
from app.tools.local_broker.jars import KAFKA_VERSION, kafka_jars
from app.tools.local_broker.java import JavaProcess, JavaProgram, left_behind, wait_until
from app.tools.local_broker.properties import HOST, server_properties
from app.tools.local_broker.readiness import ready_cluster

DEFAULT_FOLDER = Path(".millrace/broker")
_START_S = 60.0
_STOP_S = 15.0
_FORMAT_S = 60.0
# Below the ports that systems lend to clients: one that reconnects in a loop could else take the broker's own port.
_FREE_PORTS = range(20_000, 32_000)


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
        """Describe it; nothing runs yet.

        Port 0 chooses a free one and keeps it. `settings` are Kafka's own, over ours. `repository` is a mirror of the
        Maven repository. With `dies_with_parent`, Linux kills the broker when the thread that started it ends.
        `version` is Kafka's; a folder belongs to one version.
        """
        self._folder = Path(folder).resolve()
        self._port = port
        self._settings = dict(settings or {})
        self._repository = repository
        self._dies_with_parent = dies_with_parent
        self._version = version
        self._process: JavaProcess | None = None
        self._lock: TextIOWrapper | None = None

    @property
    def folder(self) -> Path:
        """Where its data and its log are."""
        return self._folder

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find it."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The Java process's id."""
        if self._process is None:
            raise LocalBrokerError(f"no broker runs in {self._folder}; start it first")
        return self._process.pid

    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.alive()

    def claim(self) -> None:
        """Take the folder, and start nothing yet. FolderInUseError where another process has it."""
        if self._lock is None:
            self._take_folder()

    def start(self, deadline: float = _START_S) -> None:
        """Start it and wait until it serves, at most `deadline` seconds; the first download comes on top."""
        if self.running():
            raise FolderInUseError(f"the broker in {self._folder} is already started")
        self._process = None  # it may have ended by itself, or been killed by its id
        self.claim()
        try:
            if not self._adopt():
                self._launch(kafka_jars(self._repository, self._version))
                self._wait_until_ready(deadline)
        except BaseException:
            self.kill()
            raise

    def stop(self, deadline: float = _STOP_S) -> None:
        """End it in order; kill it when it takes longer than `deadline` seconds."""
        if self._process is not None:
            self._process.end(deadline)
        self._release()

    def kill(self) -> None:
        """End it as a crash would. Its folder can be started again."""
        if self._process is not None:
            self._process.kill()
        self._release()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; `config` holds Kafka's own settings of topics."""
        from app.tools.local_broker.topics import create_topic  # noqa: PLC0415 - the client is slow to import, and often unused

        create_topic(self.bootstrap_servers, name, partitions, config)

    def last_words(self, code: int | None = None) -> str:
        """Give the last line of its log that begins a message, and where the log is."""
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if not line.startswith(("\t", " "))), "it said nothing")
        ended = "" if code is None else f"exit code {code}; "
        return f"{said.strip()} ({ended}all of it in {self._log})"

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

    def _take_folder(self) -> None:
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

    def _release(self) -> None:
        self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _adopt(self) -> bool:
        """Take over what a killed owner left running in the folder; stop it where it cannot be used."""
        state = self._read_state()
        process = left_behind(int(state.get("pid", 0)), str(self._properties))
        if process is None:
            return False
        port = int(state["port"])
        cluster = self._cluster_id()
        if self._port in (0, port) and cluster is not None and ready_cluster(HOST, port) == cluster:
            self._port, self._process = port, process
            return True
        process.end(_STOP_S)
        return False

    def _launch(self, jars: Path) -> None:
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
            self._format(jars)
        kafka = JavaProgram(jars=jars, main="kafka.Kafka", arguments=[str(self._properties)], folder=self._folder)
        self._process = kafka.start(self._log, dies_with_parent=self._dies_with_parent)
        self._state.write_text(json.dumps({"pid": self._process.pid, "port": self._port}))

    @property
    def _formatted(self) -> Path:
        return self._folder / "data" / "meta.properties"

    def _format(self, jars: Path) -> None:
        arguments = ["format", "--cluster-id", _new_cluster_id(), "--config", str(self._properties)]
        tool = JavaProgram(jars=jars, main="kafka.tools.StorageTool", arguments=arguments, folder=self._folder)
        code = tool.run(self._log, _FORMAT_S)
        if code != 0:
            raise LocalBrokerError(f"Kafka cannot prepare {self._folder / 'data'}: {self.last_words(code)}")

    def _wait_until_ready(self, deadline: float) -> None:
        assert self._process is not None
        process, cluster = self._process, self._cluster_id()
        settled = wait_until(lambda: not process.alive() or ready_cluster(HOST, self._port) == cluster, deadline)
        if not process.alive():
            code = process.child.returncode if process.child is not None else None
            raise LocalBrokerError(f"the broker ended while it started: {self.last_words(code)}")
        if not settled:
            raise LocalBrokerError(
                f"the broker on {self.bootstrap_servers} does not serve within {deadline:.0f} s: {self.last_words()}"
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
    """Give 16 random bytes in Kafka's form, which may not begin with a dash: it would read as an option."""
    encoded = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return encoded if not encoded.startswith("-") else _new_cluster_id()


def free_port(besides: int = 0) -> int:
    """Find a port on loopback that nobody listens on, and that is not the one `besides`."""
    for port in random.Random(os.urandom(8)).sample(_FREE_PORTS, 100):  # noqa: S311 - any order does
        if port != besides and is_free(port):
            return port
    raise PortTakenError(f"no free port found on {HOST}; choose one with --port")


def is_free(port: int) -> bool:
    """Whether nobody listens there on loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: connections just closed are no bar
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
